// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"cmp"
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
	"nstance.dev/operator/pkg/base/audit"
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

// deleteNstanceMachine deletes an NstanceMachine whose Machine does not exist.
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

// removeFinalizer lets the API server delete the NstanceMachine. The patch contains the
// resource version: the decision that no instance was requested is true for the version that
// was read, and may be wrong for a later version.
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

// isRetained reports whether the instance of a pool stays on its shard when the
// NstanceMachine is deleted: the pool is being deleted with the policy Retain.
func (c *Controller) isRetained(nstanceMachine *v1beta1.NstanceMachine) (bool, error) {
	ref := controllers.PoolOf(nstanceMachine)
	if ref == nil || nstanceMachine.DeletionTimestamp.IsZero() {
		return false, nil
	}
	pool, err := controller.GetCached(c.poolLister.Get, "pool", c.key(ref.Name))
	if err != nil || pool == nil || pool.UID != ref.UID {
		return false, err
	}
	return !pool.DeletionTimestamp.IsZero() && pool.Spec.DeletionPolicy == v1beta1.DeletionRetain, nil
}

// reasonShardAbandoned: an administrator gave up an instance on a lost shard.
const reasonShardAbandoned = "ShardAbandoned"

// abandonedValue returns the value of the annotation that gives up the instance: its shard and
// id.
func abandonedValue(observed observation) string {
	return observed.shardID + "/" + cmp.Or(observed.instanceID, "unknown")
}

// planAbandonment decides on the deletion of an instance whose shard is not configured. The
// shard cannot confirm the deletion, so that the deletion waits for an administrator.
func planAbandonment(observed observation, blocked problem) decision {
	value := abandonedValue(observed)
	if observed.nstanceMachine.Annotations[v1beta1.AnnotationConfirmAbandon] == value {
		return decision{step: abandonInstance}
	}
	blocked.message = fmt.Sprintf("%s; if the shard is lost, the annotation %s=%s gives up the instance",
		blocked.message, v1beta1.AnnotationConfirmAbandon, value)
	return decision{problem: &blocked}
}

// abandon lets the API server delete the NstanceMachine although the shard has not confirmed
// the deletion.
func (c *Controller) abandon(ctx context.Context, observed observation) error {
	if err := c.removeFinalizer(ctx, observed.nstanceMachine); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Gave up the instance of a shard that is not configured, as the annotation says",
		"shard", observed.shardID, "instance", observed.instanceID, "providerID", observed.nstanceMachine.Spec.ProviderID)
	controller.Warn(c.recorder, observed.nstanceMachine, reasonShardAbandoned, "Abandon",
		fmt.Sprintf("the instance on shard %q was given up: %s", observed.shardID, abandonedValue(observed)))
	return nil
}

// auditDeletion writes the audit entry of a call of DeleteInstance, and records an event when
// the shard accepts the deletion. Later calls only query whether the deletion is complete, and
// calls for an instance that the shard does not have delete nothing: neither is recorded.
func (c *Controller) auditDeletion(ctx context.Context, observed observation, state *syncState, deleted bool, err error) {
	if state.deletionAccepted || deleted {
		return
	}
	state.deletionAccepted = err == nil
	entry := audit.Entry{
		Action: audit.DeleteInstance, Shard: observed.shardID, Group: string(observed.nstanceMachine.Spec.GroupRef.Name),
		Instance: observed.instanceID, To: "deleting", Generation: observed.nstanceMachine.Generation,
		Reason: "requested", Writer: deletedBy(observed), Result: controllers.CallResult(err), Err: err,
	}
	if observed.listed != nil {
		entry.From = string(observed.listed.State)
	}
	entry.Log(ctx)
	if err == nil {
		controller.Record(c.recorder, observed.nstanceMachine, reasonDeletingInstance, "DeleteInstance", fmt.Sprintf(
			"shard %q deletes instance %s; %s %s; %s", observed.shardID, observed.instanceID, audit.KeyRequestID, audit.RequestFrom(ctx).ID, entry.Writer))
	}
}

// deletedBy returns the object whose deletion deletes the instance. The user who deleted the
// object is only in the API server's own audit log.
func deletedBy(observed observation) string {
	if machine := observed.machine; machine != nil && !machine.DeletionTimestamp.IsZero() {
		return fmt.Sprintf("Machine %s is deleted", machine.Name)
	}
	return fmt.Sprintf("NstanceMachine %s is deleted", observed.nstanceMachine.Name)
}
