// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
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

// retains reports whether the pool is being deleted while its instances stay on the shards.
func retains(pool *v1beta1.NstanceMachinePool) bool {
	return deleting(pool) && pool.Spec.DeletionPolicy == v1beta1.DeletionRetain
}

// planRelease removes the Machines and NstanceMachines of instances that stay. An
// NstanceMachine is deleted after its Machine.
func planRelease(observed observation, d *decision) {
	for _, id := range slices.Sorted(maps.Keys(observed.machines)) {
		if !observed.foreign.Has(id) {
			d.release = append(d.release, observed.machines[id])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(observed.nstanceMachines)) {
		nstanceMachine := observed.nstanceMachines[id]
		if observed.machines[id] == nil && !deleting(nstanceMachine) && getsNoMachines(observed) {
			d.deleteWithoutMachine = append(d.deleteWithoutMachine, nstanceMachine)
		}
	}
}

// release deletes Machines without Cluster API, which would drain and delete their Nodes. It
// pauses each Machine first, because Cluster API ignores paused Machines
// (docs/capi.md#deletion).
func (c *Controller) release(ctx context.Context, machines []*clusterv1.Machine) error {
	return each(ctx, machines, func(machine *clusterv1.Machine) error {
		err := c.releaseMachine(ctx, machine)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// releaseMachine skips the steps that the cached Machine shows as done.
func (c *Controller) releaseMachine(ctx context.Context, machine *clusterv1.Machine) error {
	options := metav1.PatchOptions{FieldManager: controllers.FieldManager}
	if controllers.PausedBy(nil, machine) == "" {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": machine.UID, "annotations": map[string]any{clusterv1.PausedAnnotation: ""},
		}})
		if err != nil {
			return fmt.Errorf("encode the patch that pauses Machine %s: %w", klog.KObj(machine), err)
		}
		if _, err := c.machines.Patch(ctx, machine.Name, types.MergePatchType, patch, options); err != nil {
			return fmt.Errorf("pause Machine %s: %w", klog.KObj(machine), err)
		}
	}
	if !deleting(machine) && !c.deletions.Requested(machine) {
		if err := c.machines.Delete(ctx, machine.Name, controller.DeleteByUID(machine)); err != nil {
			return fmt.Errorf("delete Machine %s: %w", klog.KObj(machine), err)
		}
		c.deletions.Record(machine)
		controllers.RecordMachineDeletion(ctx, c.recorder, machine, "spec.deletionPolicy of its pool is Retain: its instance and its Node stay", nil)
	}
	patch, err := controller.RemoveFinalizer(machine, clusterv1.MachineFinalizer)
	if err != nil || patch == nil {
		return err
	}
	if _, err := c.machines.Patch(ctx, machine.Name, types.JSONPatchType, patch, options); err != nil {
		return fmt.Errorf("remove Cluster API's finalizer of Machine %s: %w", klog.KObj(machine), err)
	}
	return nil
}
