// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
)

// The indexes of the controller, with which no change of one object walks a whole
// cache. Other controllers index the same caches under other names.
const (
	// byPool finds shard groups and nstanceMachines by the uid of their pool.
	byPool = "poolmember.pool"
	// byPoolName finds Machines by the label that names their MachinePool, and
	// MachinePools by what that label is for them.
	byPoolName = "poolmember.poolName"
)

var (
	shardGroupIndexers = cache.Indexers{byPool: func(obj any) ([]string, error) {
		if group, ok := obj.(*v1beta1.NstanceShardGroup); ok {
			if owner := poolOwning(group); owner != nil {
				return []string{string(owner.UID)}, nil
			}
		}
		return nil, nil
	}}

	nstanceMachineIndexers = cache.Indexers{byPool: controller.PoolUIDOf}

	machineIndexers = cache.Indexers{byPoolName: func(obj any) ([]string, error) {
		if machine, ok := obj.(*clusterv1.Machine); ok {
			if name := poolName(machine); name != "" {
				return []string{name}, nil
			}
		}
		return nil, nil
	}}

	machinePoolIndexers = cache.Indexers{byPoolName: func(obj any) ([]string, error) {
		if machinePool, ok := obj.(*clusterv1.MachinePool); ok {
			return []string{capi.LabelValue(machinePool.Name)}, nil
		}
		return nil, nil
	}}
)

// poolOwning returns the reference to the pool of a shard group, nil if it has none.
func poolOwning(group *v1beta1.NstanceShardGroup) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(group)
	if owner == nil || owner.Kind != v1beta1.PoolKind {
		return nil
	}
	return owner
}

// poolName returns the label that names the MachinePool of a Machine whose
// infrastructure is ours, "" for any other Machine.
func poolName(machine *clusterv1.Machine) string {
	if capi.NstanceMachineOf(machine) == "" {
		return ""
	}
	return machine.Labels[clusterv1.MachinePoolNameLabel]
}
