// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// replicasPath is spec.replicas as the API server records who wrote it.
var replicasPath = fieldpath.MakePathOrDie("spec", "replicas")

// KeepReplicasOwners is the transform of a MachinePool informer. It drops of
// metadata.managedFields all but the entries of those who have written
// spec.replicas, which asked reads.
func KeepReplicasOwners(obj any) (any, error) {
	machinePool, ok := obj.(*clusterv1.MachinePool)
	if !ok {
		return obj, nil
	}
	owners := slices.DeleteFunc(machinePool.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		return !ownsReplicas(entry)
	})
	if len(owners) == 0 && len(machinePool.ManagedFields) > 0 {
		// Without any entry nothing would be known of the owners.
		owners = []metav1.ManagedFieldsEntry{{}}
	}
	machinePool.ManagedFields = owners
	return machinePool, nil
}

// asked tells whether somebody wrote the number of replicas. Cluster API fills
// in a number of its own when nobody does, and a webhook's number has no owner.
// A user who wants a number writes it, and so does an autoscaler. When the API
// server has no record at all, the number counts.
func asked(machinePool *clusterv1.MachinePool) bool {
	return len(machinePool.ManagedFields) == 0 || slices.ContainsFunc(machinePool.ManagedFields, ownsReplicas)
}

func ownsReplicas(entry metav1.ManagedFieldsEntry) bool {
	if entry.FieldsV1 == nil {
		return false
	}
	owned := &fieldpath.Set{}
	return owned.FromJSON(entry.FieldsV1.GetRawReader()) == nil && owned.Has(replicasPath)
}
