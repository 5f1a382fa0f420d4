// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// Every write names the resource version that it is based on. Whether there is an
// instance, and on which shard, is stored in the NstanceMachine only. A write that
// is based on a stale cache, such as that of a new leader, would erase it, and a
// second instance would be created.

// report writes the result of a sync: first finalizer, annotations and provider id, then
// the status, which has the generation of that spec. Finally it sets the Node of the
// Machine. It returns the delay until the next sync.
func (c *Controller) report(ctx context.Context, observed observation, done outcome, state *syncState) (time.Duration, error) {
	nstanceMachine := observed.nstanceMachine
	nodes := c.matchingNodes(nstanceMachine, done)
	if observed.paused == "" && nstanceMachine.DeletionTimestamp.IsZero() {
		id := wantedProviderID(nstanceMachine.Spec.ProviderID, reportedProviderID(nstanceMachine, done), nodes)
		needsFinalizer := done.shard != "" || observed.shardID != ""
		annotations := wantedAnnotations(nstanceMachine, observed, done, id)
		if needsFinalizer && !hasFinalizer(nstanceMachine) || id != nstanceMachine.Spec.ProviderID || !hasAll(nstanceMachine.Annotations, annotations) {
			written, err := c.nstanceMachines.Apply(ctx, applyNstanceMachine(nstanceMachine, id, annotations), controllers.Apply)
			if err != nil {
				return 0, fmt.Errorf("write finalizer, annotations and provider id of NstanceMachine %s: %w", klog.KObj(nstanceMachine), err)
			}
			c.writes.Record(written)
			nstanceMachine = written
		}
	}
	status := newStatus(nstanceMachine, observed, done, nodes)
	if !equality.Semantic.DeepEqual(status, observed.nstanceMachine.Status) {
		written, err := c.nstanceMachines.ApplyStatus(ctx, applyStatus(nstanceMachine, status), controllers.Apply)
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("write the status of NstanceMachine %s: %w", klog.KObj(nstanceMachine), err)
		}
		c.writes.Record(written)
		state.located = state.located || done.shard != ""
		c.recordProblem(observed, status)
	}
	c.recordAmbiguity(nstanceMachine, status, nodes, state)
	if observed.paused != "" {
		return 0, nil
	}
	return c.setNodeRef(ctx, observed, nodes, state)
}

// hasAll reports whether an object has all these annotations.
func hasAll(annotations, wanted map[string]string) bool {
	for name, value := range wanted {
		if annotations[name] != value {
			return false
		}
	}
	return true
}

// matchingNodes returns the Nodes that may be that of the instance.
func (c *Controller) matchingNodes(nstanceMachine *v1beta1.NstanceMachine, done outcome) []*corev1.Node {
	id := reportedProviderID(nstanceMachine, done)
	if id == "" {
		return nil
	}
	return c.nodes.WithProviderID(id)
}

// reportedProviderID returns the provider id that the shard has reported, "" when it
// has not reported any.
func reportedProviderID(nstanceMachine *v1beta1.NstanceMachine, done outcome) string {
	if done.instance != nil && done.instance.ProviderID != "" {
		return done.instance.ProviderID
	}
	return nstanceMachine.Status.ProviderID
}

// applyNstanceMachine returns all fields that the operator owns outside the status.
func applyNstanceMachine(nstanceMachine *v1beta1.NstanceMachine, providerID string, annotations map[string]string) *applyv1beta1.NstanceMachineApplyConfiguration {
	applied := applyv1beta1.NstanceMachine(nstanceMachine.Name, nstanceMachine.Namespace).
		WithUID(nstanceMachine.UID).
		WithResourceVersion(nstanceMachine.ResourceVersion).
		WithFinalizers(v1beta1.FinalizerMachine).
		WithAnnotations(annotations)
	if providerID != "" {
		applied.WithSpec(applyv1beta1.NstanceMachineSpec().WithProviderID(providerID))
	}
	return applied
}

// applyStatus returns all fields that the operator owns in the status.
func applyStatus(nstanceMachine *v1beta1.NstanceMachine, status v1beta1.NstanceMachineStatus) *applyv1beta1.NstanceMachineApplyConfiguration {
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
	return applyv1beta1.NstanceMachine(nstanceMachine.Name, nstanceMachine.Namespace).
		WithUID(nstanceMachine.UID).
		WithResourceVersion(nstanceMachine.ResourceVersion).
		WithStatus(applied)
}
