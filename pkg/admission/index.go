// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
)

// byGroup is the index of pools by group. Its name has a prefix because the
// informer is shared.
const byGroup = "admission.group"

var poolIndexers = cache.Indexers{byGroup: func(obj any) ([]string, error) {
	if pool, ok := obj.(*v1beta1.NstanceMachinePool); ok {
		return []string{string(pool.Spec.Group)}, nil
	}
	return nil, nil
}}

// poolsOf returns the pools of a group.
func (v *Validator) poolsOf(group v1beta1.Identifier) []*v1beta1.NstanceMachinePool {
	return controller.Indexed[v1beta1.NstanceMachinePool](v.poolIndex, byGroup, string(group))
}

// machinePoolsOf returns the MachinePools that refer to a pool.
func (v *Validator) machinePoolsOf(pool string) []*clusterv1.MachinePool {
	return controller.Indexed[clusterv1.MachinePool](v.machinePoolIndex, capi.ByPool, pool)
}
