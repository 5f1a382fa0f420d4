// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// removeMachines deletes Machines whose instances are to go. Cluster API drains
// them, and then deletes their NstanceMachines.
func (c *Controller) removeMachines(ctx context.Context, machines []*clusterv1.Machine) error {
	return each(ctx, machines, func(machine *clusterv1.Machine) error {
		since := "its instance is to go"
		if unhealthy(machine) {
			since = "a MachineHealthCheck has found it unhealthy"
		}
		return c.deleteMachine(ctx, machine, since)
	})
}

// removeMembers deletes members for which there is no Machine and will be none.
// The cache may not have a Machine yet that the API server has.
func (c *Controller) removeMembers(ctx context.Context, members []*v1beta1.NstanceMachine) error {
	return each(ctx, members, func(member *v1beta1.NstanceMachine) error {
		_, err := c.machines.Get(ctx, member.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			return nil
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("look for the Machine of NstanceMachine %s: %w", klog.KObj(member), err)
		}
		err = c.members.Delete(ctx, member.Name, controller.Exactly(member))
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete NstanceMachine %s: %w", klog.KObj(member), err)
		}
		klog.FromContext(ctx).Info("NstanceMachine deleted, since it is to go and has no Machine", "nstanceMachine", klog.KObj(member))
		return nil
	})
}

// removeOrphans deletes Machines that have no NstanceMachine. The cache may not
// have one yet that the API server has.
func (c *Controller) removeOrphans(ctx context.Context, machines []*clusterv1.Machine) error {
	return each(ctx, machines, func(machine *clusterv1.Machine) error {
		_, err := c.members.Get(ctx, machine.Spec.InfrastructureRef.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			return nil
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("look for the NstanceMachine of Machine %s: %w", klog.KObj(machine), err)
		}
		return c.deleteMachine(ctx, machine, "its NstanceMachine is gone")
	})
}

func (c *Controller) deleteMachine(ctx context.Context, machine *clusterv1.Machine, since string) error {
	err := c.machines.Delete(ctx, machine.Name, controller.Exactly(machine))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete Machine %s: %w", klog.KObj(machine), err)
	}
	klog.FromContext(ctx).Info("Machine deleted", "machine", klog.KObj(machine), "since", since)
	return nil
}

// each does something with each of items, whether or not it can be done with the
// others. Many mostly fail for one reason, so the first is told.
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
