// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// replicasPath is the path of spec.replicas in managed fields.
var replicasPath = fieldpath.MakePathOrDie("spec", "replicas")

// ReplicasOwned reports whether a field manager owns spec.replicas. A number that Cluster
// API's webhook has set as a default has no owner, nor has a number that was written
// through the scale subresource (docs/capi.md#replicas).
func ReplicasOwned(machinePool *clusterv1.MachinePool) bool {
	return slices.ContainsFunc(machinePool.ManagedFields, ownsReplicas)
}

// KeepReplicasOwners is the transform of a MachinePool informer. It removes the entries
// of metadata.managedFields that ReplicasOwned does not need.
func KeepReplicasOwners(obj any) (any, error) {
	machinePool, ok := obj.(*clusterv1.MachinePool)
	if !ok {
		return obj, nil
	}
	owners := slices.DeleteFunc(machinePool.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		return !ownsReplicas(entry)
	})
	if len(owners) == 0 && len(machinePool.ManagedFields) > 0 {
		// Without any entry, the owners of all fields would be unknown.
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
