// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/base/capi"
)

// validateMachinePool rejects a change that removes the replicas of a MachinePool of
// a pool: Cluster API would set its default, usually 1, and all other instances would
// be deleted without a request. A number that the sender sets has a field owner; the
// default of Cluster API has none. With both annotations of the Cluster Autoscaler
// the replicas may be removed, because that hands them over to the autoscaler
// (docs/capi.md#replicas).
func (v *Validator) validateMachinePool(before, after *clusterv1.MachinePool) error {
	if before == nil || capi.PoolOf(after) == "" || capi.ReplicasOwned(after) || autoscaled(after) {
		return nil
	}
	previous, defaulted := ptr.Deref(before.Spec.Replicas, 0), ptr.Deref(after.Spec.Replicas, 0)
	if defaulted >= previous {
		return nil
	}
	return apierrors.NewInvalid(clusterv1.GroupVersion.WithKind("MachinePool").GroupKind(), after.Name, field.ErrorList{
		field.Required(field.NewPath("spec", "replicas"),
			fmt.Sprintf("without a number Cluster API makes %d of the present %d; give the number that is wanted", defaulted, previous)),
	})
}

func autoscaled(machinePool *clusterv1.MachinePool) bool {
	_, hasMin := machinePool.Annotations[clusterv1.AutoscalerMinSizeAnnotation]
	_, hasMax := machinePool.Annotations[clusterv1.AutoscalerMaxSizeAnnotation]
	return hasMin && hasMax
}

// validateMachinePoolDeletion rejects the deletion of the MachinePool of a static
// pool: Cluster API would delete the pool with it.
func (v *Validator) validateMachinePoolDeletion(machinePool *clusterv1.MachinePool) error {
	name := capi.PoolOf(machinePool)
	if name == "" || v.clusterIsDeleted() {
		return nil
	}
	pool, err := v.pools.Get(name)
	// The MachinePool of a pool that is being deleted may be deleted too.
	if err != nil || pool.DeletionTimestamp != nil || !isStatic(pool) {
		return nil //nolint:nilerr // a pool that is not in the cache does not exist
	}
	return forbid("MachinePool %q cannot be deleted: %s", machinePool.Name, staticReason(pool))
}
