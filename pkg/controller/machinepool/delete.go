// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
)

// planDeletion lets a pool go when its last shard group is gone, each of which
// waits for its shard. It deletes the MachinePool and does not wait for it:
// Cluster API keeps a MachinePool until its pool is gone (CAPI contract).
func planDeletion(seen observation) decision {
	d := decision{
		machines: machinesMode{on: hasMachines(seen.pool)},
		adopt:    slices.ContainsFunc(seen.machinePools, func(machinePool *clusterv1.MachinePool) bool { return !ownedBy(seen.pool, machinePool) }),
		hold:     &trouble{v1beta1.ReasonDeleting, "the pool is being deleted and waits for its shard groups"},
	}
	if len(seen.members) > 0 {
		d.hold.message = "the pool is being deleted and waits for the Machines of its instances"
	}
	d.release = len(seen.owned) == 0 && len(seen.members) == 0 && !d.adopt
	for _, machinePool := range seen.machinePools {
		if machinePool.DeletionTimestamp.IsZero() {
			d.removeMachinePools = append(d.removeMachinePools, machinePool)
		}
	}
	for _, group := range seen.owned {
		if group.DeletionTimestamp.IsZero() {
			planLeaving(seen, group, &d)
		}
	}
	return d
}

// hold puts the finalizer on a pool, before there is anything on a shard to wait
// for, and the owners on a pool that is being deleted.
func (c *Controller) hold(ctx context.Context, seen observation) (*v1beta1.NstanceMachinePool, error) {
	written, err := c.pools.Apply(ctx, applyPool(seen, seen.pool.Spec.ProviderIDList), controller.Apply)
	if err != nil {
		return nil, fmt.Errorf("write finalizer and owners of pool %s: %w", klog.KObj(seen.pool), err)
	}
	c.poolWrites.Wrote(written)
	return written, nil
}

// ownedBy tells whether a MachinePool is among the owners of a pool. Cluster API
// makes it one, but not when it meets the MachinePool in deletion, and then it is
// never told that the pool is gone and keeps the MachinePool for ever.
func ownedBy(pool *v1beta1.NstanceMachinePool, machinePool *clusterv1.MachinePool) bool {
	return slices.ContainsFunc(pool.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.UID == machinePool.UID })
}

// hidden tells whether the pool has a MachinePool that the cache does not show:
// one that was made by a request without an answer, or by a former leader.
func (c *Controller) hidden(ctx context.Context, seen observation) (bool, error) {
	if len(seen.machinePools) > 0 {
		return false, nil
	}
	machinePool, err := c.machinePools.Get(ctx, seen.pool.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for the MachinePool of pool %s: %w", klog.KObj(seen.pool), err)
	}
	return capi.PoolOf(machinePool) == seen.pool.Name, nil
}

// releasePool lets the API server remove the pool.
func (c *Controller) releasePool(ctx context.Context, pool *v1beta1.NstanceMachinePool) error {
	patch, err := controller.RemoveFinalizer(pool, v1beta1.FinalizerMachinePool)
	if err != nil || patch == nil {
		return err
	}
	_, err = c.pools.Patch(ctx, pool.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: controller.FieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer of pool %s: %w", klog.KObj(pool), err)
	}
	klog.FromContext(ctx).Info("Pool released")
	return nil
}

func (c *Controller) removeShardGroups(ctx context.Context, groups []*v1beta1.NstanceShardGroup) error {
	var failed []error
	for _, group := range groups {
		if err := c.shardGroups.Delete(ctx, group.Name, controller.Exactly(group)); err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("delete shard group %s: %w", klog.KObj(group), err))
		}
	}
	return errors.Join(failed...)
}

func (c *Controller) removeMachinePools(ctx context.Context, machinePools []*clusterv1.MachinePool) error {
	var failed []error
	for _, machinePool := range machinePools {
		if err := c.machinePools.Delete(ctx, machinePool.Name, controller.Exactly(machinePool)); err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("delete MachinePool %s: %w", klog.KObj(machinePool), err))
		}
	}
	return errors.Join(failed...)
}
