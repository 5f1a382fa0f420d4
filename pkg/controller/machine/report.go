// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
)

// Every write names the version of the machine that it is based on. Where the
// instance is, and whether there is one, is known from the machine alone: a write
// from a cache that is behind, such as that of a new leader, would erase it, and a
// second instance would be made.

// report writes what is known now: first finalizer and provider id, then the
// status, which names the generation that the spec then has. Last, the Machine is
// told its Node. It returns when to look again.
func (c *Controller) report(ctx context.Context, seen observation, done outcome, recalled *memory) (time.Duration, error) {
	machine := seen.machine
	nodes := c.matching(machine, done)
	if seen.paused == "" && machine.DeletionTimestamp.IsZero() {
		id := writtenProviderID(machine.Spec.ProviderID, toldProviderID(machine, done), nodes)
		needed := done.shard != "" || shardOf(machine) != ""
		if needed && !held(machine) || id != machine.Spec.ProviderID {
			written, err := c.machines.Apply(ctx, applyMachine(machine, id), controller.Apply)
			if err != nil {
				return 0, fmt.Errorf("write finalizer and provider id of machine %s: %w", klog.KObj(machine), err)
			}
			c.writes.Wrote(written)
			machine = written
		}
	}
	status := newStatus(machine, seen, done, nodes)
	if !equality.Semantic.DeepEqual(status, seen.machine.Status) {
		written, err := c.machines.ApplyStatus(ctx, applyStatus(machine, status), controller.Apply)
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("write the status of machine %s: %w", klog.KObj(machine), err)
		}
		c.writes.Wrote(written)
		c.recordTrouble(seen.machine, status)
	}
	c.recordAmbiguity(machine, status, nodes, recalled)
	if seen.paused != "" {
		return 0, nil
	}
	return c.linkNode(ctx, seen, nodes, recalled)
}

// matching are the Nodes that may be that of the instance.
func (c *Controller) matching(machine *v1beta1.NstanceMachine, done outcome) []*corev1.Node {
	id := toldProviderID(machine, done)
	if id == "" {
		return nil
	}
	return c.nodes.WithProviderID(id)
}

// toldProviderID is the provider id as the shard tells it, "" when it has not yet.
func toldProviderID(machine *v1beta1.NstanceMachine, done outcome) string {
	if done.instance != nil && done.instance.ProviderID != "" {
		return done.instance.ProviderID
	}
	return machine.Status.ProviderID
}

// release lets the API server remove the machine. It is a merge patch, and not one
// that looks at the finalizer only: that no instance was ordered is true of the
// version that was read, and may not be of the next.
func (c *Controller) release(ctx context.Context, machine *v1beta1.NstanceMachine) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             machine.UID,
		"resourceVersion": machine.ResourceVersion,
		"finalizers": slices.DeleteFunc(slices.Clone(machine.Finalizers), func(finalizer string) bool {
			return finalizer == v1beta1.FinalizerMachine
		}),
	}})
	if err != nil {
		return fmt.Errorf("encode the patch that removes the finalizer of machine %s: %w", klog.KObj(machine), err)
	}
	_, err = c.machines.Patch(ctx, machine.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: controller.FieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer of machine %s: %w", klog.KObj(machine), err)
	}
	return nil
}

// applyMachine is all that the operator owns of a machine beside its status.
func applyMachine(machine *v1beta1.NstanceMachine, providerID string) *applyv1beta1.NstanceMachineApplyConfiguration {
	applied := applyv1beta1.NstanceMachine(machine.Name, machine.Namespace).
		WithUID(machine.UID).
		WithResourceVersion(machine.ResourceVersion).
		WithFinalizers(v1beta1.FinalizerMachine)
	if providerID != "" {
		applied.WithSpec(applyv1beta1.NstanceMachineSpec().WithProviderID(providerID))
	}
	return applied
}

// applyStatus is status as the whole of what the operator owns in it.
func applyStatus(machine *v1beta1.NstanceMachine, status v1beta1.NstanceMachineStatus) *applyv1beta1.NstanceMachineApplyConfiguration {
	applied := applyv1beta1.NstanceMachineStatus().
		WithObservedGeneration(status.ObservedGeneration).
		WithConditions(controller.ApplyConditions(status.Conditions)...)
	for field, value := range map[**string]string{
		&applied.Shard: status.Shard, &applied.RequestID: status.RequestID,
		&applied.InstanceID: status.InstanceID, &applied.ProviderID: status.ProviderID,
	} {
		if value != "" {
			*field = &value
		}
	}
	applied.Ready = status.Ready
	if status.Initialization.Provisioned != nil {
		applied.WithInitialization(applyv1beta1.NstanceMachineInitialization().WithProvisioned(*status.Initialization.Provisioned))
	}
	for _, address := range status.Addresses {
		applied.WithAddresses(applyv1beta1.MachineAddress().WithType(address.Type).WithAddress(address.Address))
	}
	return applyv1beta1.NstanceMachine(machine.Name, machine.Namespace).
		WithUID(machine.UID).
		WithResourceVersion(machine.ResourceVersion).
		WithStatus(applied)
}
