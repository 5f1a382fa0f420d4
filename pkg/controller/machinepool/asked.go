// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"nstance.dev/operator/pkg/controller"
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

// asked tells whether somebody asked for the number of replicas. When nobody
// does, Cluster API's webhook fills in a number as the MachinePool is made, and
// what a webhook fills in has no owner. Later numbers count, whoever wrote them:
// those of the scale subresource have no owner either. So they do when the API
// server has no record at all.
func asked(machinePool *clusterv1.MachinePool) bool {
	return machinePool.Generation > 1 || len(machinePool.ManagedFields) == 0 ||
		slices.ContainsFunc(machinePool.ManagedFields, ownsReplicas)
}

// raise sets the replicas of a MachinePool for which nobody asked for a number.
func (c *Controller) raise(ctx context.Context, machinePool *clusterv1.MachinePool, replicas int32) error {
	err := c.capi.ScaleMachinePool(ctx, machinePool, replicas, metav1.PatchOptions{FieldManager: controller.FieldManager})
	if err != nil {
		return fmt.Errorf("set the replicas of MachinePool %s to %d: %w", klog.KObj(machinePool), replicas, err)
	}
	klog.FromContext(ctx).Info("MachinePool got the replicas that its shards have", "replicas", replicas)
	return nil
}

func ownsReplicas(entry metav1.ManagedFieldsEntry) bool {
	if entry.FieldsV1 == nil {
		return false
	}
	owned := &fieldpath.Set{}
	return owned.FromJSON(entry.FieldsV1.GetRawReader()) == nil && owned.Has(replicasPath)
}
