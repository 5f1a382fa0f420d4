// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// expectedNode returns the Nodes of the machines of a shard. The kernel of a guest needs a
// part of the memory, at most an eighth.
func expectedNode(shard provider.Shard) func(provider.Spec) *corev1.Node {
	return func(spec provider.Spec) *corev1.Node {
		return cloud.LinuxNode(shard, spec.Type,
			*resource.NewQuantity(cpus(spec.Type), resource.DecimalSI),
			*resource.NewQuantity(spec.Type.Memory.Value()/8*7, resource.BinarySI))
	}
}
