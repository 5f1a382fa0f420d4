// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// replicasPath is spec.replicas as the API server records who wrote it.
var replicasPath = fieldpath.MakePathOrDie("spec", "replicas")

// ReplicasOwned tells whether the API server has on record who wrote
// spec.replicas. It has not when Cluster API's webhook filled in a number because
// there was none, and neither after a request to the scale subresource.
func ReplicasOwned(machinePool *clusterv1.MachinePool) bool {
	return slices.ContainsFunc(machinePool.ManagedFields, ownsReplicas)
}

// KeepReplicasOwners is the transform of a MachinePool informer. It drops of
// metadata.managedFields what ReplicasOwned does not need.
func KeepReplicasOwners(obj any) (any, error) {
	machinePool, ok := obj.(*clusterv1.MachinePool)
	if !ok {
		return obj, nil
	}
	owners := slices.DeleteFunc(machinePool.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		return !ownsReplicas(entry)
	})
	if len(owners) == 0 && len(machinePool.ManagedFields) > 0 {
		// No entry at all would mean that there is no record.
		owners = []metav1.ManagedFieldsEntry{{}}
	}
	machinePool.ManagedFields = owners
	return machinePool, nil
}

func ownsReplicas(entry metav1.ManagedFieldsEntry) bool {
	if entry.FieldsV1 == nil {
		return false
	}
	owned := &fieldpath.Set{}
	return owned.FromJSON(entry.FieldsV1.GetRawReader()) == nil && owned.Has(replicasPath)
}
