// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/capi"
)

// validateMachinePool refuses to leave out the replicas of a MachinePool of ours
// that had some: Cluster API would make one of them, or what it takes for better,
// and all other instances would end without anybody's having asked for it. What
// Cluster API fills in is told from a number of the sender's by its owner, whom
// it lacks. With both annotations of the Cluster Autoscaler, leaving out the
// replicas is how they are handed over to it.
func (v *Validator) validateMachinePool(before, after *clusterv1.MachinePool) error {
	if before == nil || capi.PoolOf(after) == "" || capi.ReplicasOwned(after) || autoscaled(after) {
		return nil
	}
	had, has := ptr.Deref(before.Spec.Replicas, 0), ptr.Deref(after.Spec.Replicas, 0)
	if has >= had {
		return nil
	}
	return apierrors.NewInvalid(clusterv1.GroupVersion.WithKind("MachinePool").GroupKind(), after.Name, field.ErrorList{
		field.Required(field.NewPath("spec", "replicas"),
			fmt.Sprintf("without a number Cluster API makes %d of the present %d; give the number that is wanted", has, had)),
	})
}

func autoscaled(machinePool *clusterv1.MachinePool) bool {
	_, least := machinePool.Annotations[clusterv1.AutoscalerMinSizeAnnotation]
	_, most := machinePool.Annotations[clusterv1.AutoscalerMaxSizeAnnotation]
	return least && most
}

// validateMachinePoolDeletion refuses to delete the MachinePool of a static pool:
// Cluster API would delete the pool with it.
func (v *Validator) validateMachinePoolDeletion(machinePool *clusterv1.MachinePool) error {
	name := capi.PoolOf(machinePool)
	if name == "" || v.clusterGoes() {
		return nil
	}
	pool, err := v.pools.Get(name)
	// A pool that is being deleted takes its MachinePool with it.
	if err != nil || pool.DeletionTimestamp != nil || !isStatic(pool) {
		return nil //nolint:nilerr // a pool that is not in the cache is not there
	}
	return forbid("MachinePool %q cannot be deleted: %s", machinePool.Name, staticReason(pool))
}
