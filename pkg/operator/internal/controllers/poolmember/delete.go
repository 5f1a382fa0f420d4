// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// deleteSelected deletes the Machines of instances that scale-downs have selected. Cluster API
// drains them, and their shards do not replace them. A scale-up may have revoked the selection
// since, so the shard groups are read first: the cache may not have it yet.
func (c *Controller) deleteSelected(ctx context.Context, pool *v1beta1.NstanceMachinePool, machines []*clusterv1.Machine) error {
	if len(machines) == 0 {
		return nil
	}
	selected := sets.New[string]()
	for _, cached := range c.members.ShardGroups(pool) {
		if len(cached.Spec.RemoveFirst) == 0 {
			continue
		}
		group, err := c.shardGroups.Get(ctx, cached.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("read shard group %s of pool %s: %w", cached.Name, klog.KObj(pool), err)
		}
		if err == nil {
			selected.Insert(group.Spec.RemoveFirst...)
		}
	}
	return each(ctx, machines, func(machine *clusterv1.Machine) error {
		if !selected.Has(capi.NstanceMachineOf(machine)) {
			return nil
		}
		return c.deleteMachine(ctx, machine, "its instance was selected for removal")
	})
}

// deleteMachines deletes the Machines of a pool that is being deleted, or that are to be replaced.
func (c *Controller) deleteMachines(ctx context.Context, machines []*clusterv1.Machine) error {
	return each(ctx, machines, func(machine *clusterv1.Machine) error {
		reason := "its pool is being deleted"
		if unhealthy(machine) {
			reason = "a MachineHealthCheck found it unhealthy"
		}
		return c.deleteMachine(ctx, machine, reason)
	})
}

// deleteWithoutMachine deletes NstanceMachines that have no Machine and will not get one.
func (c *Controller) deleteWithoutMachine(ctx context.Context, nstanceMachines []*v1beta1.NstanceMachine) error {
	return each(ctx, nstanceMachines, func(nstanceMachine *v1beta1.NstanceMachine) error {
		if c.deletions.Requested(nstanceMachine) {
			return nil
		}
		if found, err := c.hasMachine(ctx, nstanceMachine); found || err != nil {
			return err
		}
		err := c.nstanceMachines.Delete(ctx, nstanceMachine.Name, controller.DeleteByUID(nstanceMachine))
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete NstanceMachine %s: %w", klog.KObj(nstanceMachine), err)
		}
		c.deletions.Record(nstanceMachine)
		controllers.LogDeletion(ctx, v1beta1.MachineKind, klog.KObj(nstanceMachine), "it has no Machine", err)
		return nil
	})
}

// deleteOrphans deletes Machines whose NstanceMachine does not exist.
func (c *Controller) deleteOrphans(ctx context.Context, machines []*clusterv1.Machine) error {
	return each(ctx, machines, func(machine *clusterv1.Machine) error {
		if c.deletions.Requested(machine) {
			return nil
		}
		if found, err := c.hasNstanceMachine(ctx, machine); found || err != nil {
			return err
		}
		return c.deleteMachine(ctx, machine, "its NstanceMachine was deleted")
	})
}

func (c *Controller) deleteMachine(ctx context.Context, machine *clusterv1.Machine, reason string) error {
	if c.deletions.Requested(machine) {
		return nil
	}
	err := c.machines.Delete(ctx, machine.Name, controller.DeleteByUID(machine))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete Machine %s: %w", klog.KObj(machine), err)
	}
	c.deletions.Record(machine)
	controllers.RecordMachineDeletion(ctx, c.recorder, machine, reason, err)
	return nil
}

// each calls do for every item, even after a failure. Most failures have the same cause, so
// the error has the first failure and the number of the others.
func each[T any](ctx context.Context, items []T, do func(T) error) error {
	var first error
	more := -1
	for _, item := range items {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := do(item); err != nil {
			more++
			if first == nil {
				first = err
			}
		}
	}
	if more > 0 {
		return fmt.Errorf("%w; so did %d more", first, more)
	}
	return first
}
