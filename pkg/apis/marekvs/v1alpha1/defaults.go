// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1alpha1

import (
	"cmp"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// Defaults that the CRD has too. The API server stores them in each object, so that a later
// version with another default does not change the nodes, the copies or the volumes of a
// cluster that exists.
const (
	DefaultNodes             int32 = 3
	DefaultReplicationFactor int32 = 2
	DefaultStorageSize             = "10Gi"
)

// Defaults that only the operator has. They are not stored, so that a later version can choose
// better values for every cluster whose user has chosen no value.
const (
	DefaultCPU                                 = "500m"
	DefaultMemory                              = "1Gi"
	DefaultScaleDownStabilizationSeconds int32 = 300
	DefaultScaleUpCooldownSeconds        int32 = 60
	DefaultReclaimAfterSeconds           int32 = 86400
	DefaultProgressDeadlineSeconds       int32 = 600
)

// WithDefaults returns a copy of the cluster, in which each unset field of the spec that has a
// default has it. The operator reads only such copies.
func (c *MarekvsCluster) WithDefaults() *MarekvsCluster {
	c = c.DeepCopy()
	spec := &c.Spec
	spec.Nodes = cmp.Or(spec.Nodes, DefaultNodes)
	spec.ReplicationFactor = cmp.Or(spec.ReplicationFactor, DefaultReplicationFactor)
	spec.Storage.Size = cmp.Or(spec.Storage.Size, ptr.To(resource.MustParse(DefaultStorageSize)))
	spec.Resources.CPU = cmp.Or(spec.Resources.CPU, ptr.To(resource.MustParse(DefaultCPU)))
	spec.Resources.Memory = cmp.Or(spec.Resources.Memory, ptr.To(resource.MustParse(DefaultMemory)))
	spec.ReclaimAfterSeconds = cmp.Or(spec.ReclaimAfterSeconds, DefaultReclaimAfterSeconds)
	spec.ProgressDeadlineSeconds = cmp.Or(spec.ProgressDeadlineSeconds, DefaultProgressDeadlineSeconds)
	if a := spec.Autoscale; a != nil {
		a.ScaleDownStabilizationSeconds = cmp.Or(a.ScaleDownStabilizationSeconds, ptr.To(DefaultScaleDownStabilizationSeconds))
		a.ScaleUpCooldownSeconds = cmp.Or(a.ScaleUpCooldownSeconds, ptr.To(DefaultScaleUpCooldownSeconds))
	}
	return c
}
