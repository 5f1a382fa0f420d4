// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

// validateMachinePoolDeletion refuses to delete the MachinePool of a static pool:
// Cluster API would delete the pool with it.
func (v *Validator) validateMachinePoolDeletion(machinePool *clusterv1.MachinePool) error {
	name := infrastructureOf(machinePool)
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
