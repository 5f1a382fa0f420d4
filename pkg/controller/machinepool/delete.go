// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// planDeletion lets a pool go when its last shard group is gone, each of which
// waits for its shard. It deletes the MachinePool and does not wait for it:
// Cluster API keeps a MachinePool until its pool is gone (CAPI contract).
func planDeletion(seen observation) decision {
	d := decision{
		release: len(seen.owned) == 0,
		hold:    &trouble{v1beta1.ReasonDeleting, "the pool is being deleted and waits for its shard groups"},
	}
	for _, machinePool := range seen.machinePools {
		if machinePool.DeletionTimestamp.IsZero() {
			d.removeMachinePools = append(d.removeMachinePools, machinePool)
		}
	}
	for _, group := range seen.owned {
		if group.DeletionTimestamp.IsZero() {
			d.remove = append(d.remove, group)
		}
	}
	return d
}

// holdPool puts the finalizer on a pool, before there is anything on a shard to
// wait for.
func (c *Controller) holdPool(ctx context.Context, pool *v1beta1.NstanceMachinePool) (*v1beta1.NstanceMachinePool, error) {
	written, err := c.pools.Apply(ctx, applyPool(pool, pool.Spec.ProviderIDList), controller.Apply)
	if err != nil {
		return nil, fmt.Errorf("put the finalizer on pool %s: %w", klog.KObj(pool), err)
	}
	c.poolWrites.Wrote(written)
	return written, nil
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
		if err := c.shardGroups.Delete(ctx, group.Name, exactly(group.UID)); err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("delete shard group %s: %w", klog.KObj(group), err))
		}
	}
	return errors.Join(failed...)
}

func (c *Controller) removeMachinePools(ctx context.Context, machinePools []*clusterv1.MachinePool) error {
	var failed []error
	for _, machinePool := range machinePools {
		if err := c.machinePools.Delete(ctx, machinePool.Name, exactly(machinePool.UID)); err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("delete MachinePool %s: %w", klog.KObj(machinePool), err))
		}
	}
	return errors.Join(failed...)
}

// exactly keeps a deletion from hitting a newer object of the same name.
func exactly(uid types.UID) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(uid))}
}
