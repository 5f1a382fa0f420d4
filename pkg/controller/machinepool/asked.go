// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
)

// asked tells whether somebody asked for the number of replicas. When nobody
// does, Cluster API's webhook fills in a number as the MachinePool is made, and
// what a webhook fills in has no owner. So until the pool is spread for the first
// time only a number with an owner counts. Afterwards any does: those of the scale
// subresource have no owner either, and the admission webhook refuses to leave out
// a number that was there. It counts, too, when the API server has no record at
// all.
func asked(seen observation, machinePool *clusterv1.MachinePool) bool {
	return len(seen.owned) > 0 || len(machinePool.ManagedFields) == 0 || capi.ReplicasOwned(machinePool)
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
