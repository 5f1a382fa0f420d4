// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// deleteMachine deletes the Machine of an instance that was deleted. Cluster API then
// deletes the NstanceMachine.
func (c *Controller) deleteMachine(ctx context.Context, machine *clusterv1.Machine) error {
	if c.deletions.Requested(machine) {
		return nil
	}
	err := c.machines.Delete(ctx, machine.Name, controller.DeleteByUID(machine))
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("delete Machine %s: %w", klog.KObj(machine), err)
	}
	c.deletions.Record(machine)
	controllers.RecordMachineDeletion(ctx, c.recorder, machine, "the shard has deleted its instance", err)
	return nil
}

// deleteNstanceMachine deletes an NstanceMachine that no Machine owns any more.
func (c *Controller) deleteNstanceMachine(ctx context.Context, nstanceMachine *v1beta1.NstanceMachine) error {
	if c.deletions.Requested(nstanceMachine) {
		return nil
	}
	err := c.nstanceMachines.Delete(ctx, nstanceMachine.Name, controller.DeleteByUID(nstanceMachine))
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("delete NstanceMachine %s, which has no Machine: %w", klog.KObj(nstanceMachine), err)
	}
	c.deletions.Record(nstanceMachine)
	controllers.LogDeletion(ctx, v1beta1.MachineKind, klog.KObj(nstanceMachine), "no Machine owns it", err)
	return nil
}

// removeFinalizer lets the API server delete the NstanceMachine. The patch names the
// resource version, and not only the finalizer: that no instance was requested is
// true of the version that was read, and may be wrong for a later one.
func (c *Controller) removeFinalizer(ctx context.Context, nstanceMachine *v1beta1.NstanceMachine) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             nstanceMachine.UID,
		"resourceVersion": nstanceMachine.ResourceVersion,
		"finalizers": slices.DeleteFunc(slices.Clone(nstanceMachine.Finalizers), func(finalizer string) bool {
			return finalizer == v1beta1.FinalizerMachine
		}),
	}})
	if err != nil {
		return fmt.Errorf("encode the patch that removes the finalizer of NstanceMachine %s: %w", klog.KObj(nstanceMachine), err)
	}
	_, err = c.nstanceMachines.Patch(ctx, nstanceMachine.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: controllers.FieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer of NstanceMachine %s: %w", klog.KObj(nstanceMachine), err)
	}
	return nil
}
