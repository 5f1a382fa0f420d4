// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// newStatus returns the status after a sync. Fields that the shard has not reported stay
// unchanged. nstanceMachine must be the newest version.
func newStatus(nstanceMachine *v1beta1.NstanceMachine, observed observation, done outcome, nodes []*corev1.Node) v1beta1.NstanceMachineStatus {
	status := *nstanceMachine.Status.DeepCopy()
	status.ObservedGeneration = nstanceMachine.Generation
	status.RequestID = observed.requestID
	if done.shard != "" {
		status.RequestID = string(nstanceMachine.UID)
	}
	status.Shard = cmp.Or(done.shard, observed.shardID)
	status.FailureDomain = status.Shard
	status.InstanceID = cmp.Or(done.instanceID, observed.instanceID)
	status.ProviderID = reportedProviderID(nstanceMachine, done)
	if len(nodes) == 1 {
		status.Addresses = addressesOf(nodes[0])
	}
	if done.instance != nil && usable(done.instance) {
		status.Initialization.Provisioned = ptr.To(true)
	}
	set := func(kind string, value metav1.ConditionStatus, reason, message string) {
		controller.SetCondition(&status.Conditions, nstanceMachine.Generation, kind, value, reason, message)
	}

	if status.InstanceID != "" {
		set(v1beta1.ConditionInstanceCreated, metav1.ConditionTrue, v1beta1.ReasonInstanceCreated, "")
	} else {
		blocked := notCreated(status, done)
		set(v1beta1.ConditionInstanceCreated, metav1.ConditionFalse, blocked.reason, blocked.message)
	}
	if message, deleted := deletedByServer(observed, done); deleted && !serverDeleted(nstanceMachine) && nstanceMachine.DeletionTimestamp.IsZero() && observed.paused == "" {
		set(v1beta1.ConditionServerDeleted, metav1.ConditionTrue, v1beta1.ReasonServerDeleted, message)
	}
	switch {
	case observed.drain.blocked:
		set(v1beta1.ConditionDrainsProgressing, metav1.ConditionFalse, v1beta1.ReasonDrainBlocked, observed.drain.message)
	case observed.drain.running:
		set(v1beta1.ConditionDrainsProgressing, metav1.ConditionTrue, v1beta1.ReasonDraining, observed.drain.message)
	case meta.FindStatusCondition(status.Conditions, v1beta1.ConditionDrainsProgressing) != nil:
		set(v1beta1.ConditionDrainsProgressing, metav1.ConditionTrue, v1beta1.ReasonNoDrains, "")
	}
	if observed.paused == "" {
		set(v1beta1.ConditionPaused, metav1.ConditionFalse, v1beta1.ReasonNotPaused, "")
	} else {
		set(v1beta1.ConditionPaused, metav1.ConditionTrue, v1beta1.ReasonPaused, observed.paused)
	}
	if ready, known := readiness(status, observed, done); known {
		status.Ready = ptr.To(ready.Status == metav1.ConditionTrue)
		set(v1beta1.ConditionReady, ready.Status, ready.Reason, ready.Message)
	}
	return status
}

// notCreated returns the reason for the condition InstanceCreated=False.
func notCreated(status v1beta1.NstanceMachineStatus, done outcome) problem {
	if done.problem != nil {
		return *done.problem
	}
	return problem{v1beta1.ReasonProvisioning, fmt.Sprintf("an instance is being requested from shard %q", status.Shard)}
}

// deletedByServer reports whether the shard has deleted the instance, and with which
// message. A shard that reports nothing has not deleted it.
func deletedByServer(observed observation, done outcome) (message string, deleted bool) {
	const byShard = "the shard has deleted the instance"
	switch {
	case observed.notice != nil && observed.notice.State == shard.Deleted:
		return cmp.Or(observed.notice.Reason, byShard), true
	case done.lost:
		return "the shard does not have the instance any more", true
	case done.instance != nil && done.instance.State == shard.InstanceTerminated:
		return byShard, true
	}
	return "", false
}

// readiness returns the condition Ready, and whether it has changed.
func readiness(status v1beta1.NstanceMachineStatus, observed observation, done outcome) (ready metav1.Condition, known bool) {
	deleting := !observed.nstanceMachine.DeletionTimestamp.IsZero()
	deleted := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionServerDeleted)
	created := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionInstanceCreated)
	switch {
	case deleting && done.problem != nil:
		return notReady(v1beta1.ReasonDeleting, "the shard has not confirmed that the instance is deleted: %s", done.problem.message), true
	case deleting && observed.providerError != "":
		return notReady(v1beta1.ReasonDeleting, "the shard is deleting the instance: %s", observed.providerError), true
	case deleting:
		return notReady(v1beta1.ReasonDeleting, "the shard is deleting the instance"), true
	case deleted != nil && deleted.Status == metav1.ConditionTrue:
		return notReady(v1beta1.ReasonServerDeleted, "%s", deleted.Message), true
	case created.Status != metav1.ConditionTrue:
		return notReady(created.Reason, "%s", created.Message), true
	case observed.paused != "":
		return metav1.Condition{}, false
	case observed.notice != nil && observed.notice.State == shard.Deleting:
		return notReady(v1beta1.ReasonServerDeleted, "the shard is deleting the instance: %s", observed.notice.Reason), true
	case done.instance != nil:
		ready := instanceReadiness(done.instance)
		if ready.Reason == v1beta1.ReasonProvisioning && observed.providerError != "" {
			return notReady(v1beta1.ReasonProviderError, "%s", observed.providerError), true
		}
		return ready, true
	case done.problem != nil:
		return notReady(done.problem.reason, "%s", done.problem.message), true
	case done.instanceID != "":
		return notReady(v1beta1.ReasonProvisioning, "instance %s was requested", status.InstanceID), true
	case observed.providerError != "" && provisioning(status):
		// The provider's error is reported before the next query.
		return notReady(v1beta1.ReasonProviderError, "%s", observed.providerError), true
	}
	return metav1.Condition{}, false
}

// provisioning reports whether the instance did not run yet when it was last reported.
func provisioning(status v1beta1.NstanceMachineStatus) bool {
	current := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionReady)
	return current != nil && (current.Reason == v1beta1.ReasonProvisioning || current.Reason == v1beta1.ReasonProviderError)
}

// instanceReadiness returns the condition Ready for the state of an instance.
func instanceReadiness(instance *shard.Instance) metav1.Condition {
	switch {
	case usable(instance):
		return metav1.Condition{Status: metav1.ConditionTrue, Reason: v1beta1.ReasonReady}
	case instance.State == shard.InstanceRunning:
		return notReady(v1beta1.ReasonProvisioning, "instance %s has no provider id", instance.ID)
	default:
		return notReady(notRunningReason(instance.State), "instance %s is %s", instance.ID, instance.State)
	}
}

func notReady(reason, format string, args ...any) metav1.Condition {
	return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// notRunningReason returns the reason of Ready=False for an instance in a state.
func notRunningReason(state shard.InstanceState) string {
	switch state {
	case shard.InstanceStopped, shard.InstanceFailed:
		return v1beta1.ReasonInstanceFailed
	case shard.InstanceTerminating, shard.InstanceTerminated:
		return v1beta1.ReasonServerDeleted
	default:
		return v1beta1.ReasonProvisioning
	}
}

// usable reports whether an instance is running and has a provider id, without which
// its Node cannot be found.
func usable(instance *shard.Instance) bool {
	return instance.State == shard.InstanceRunning && instance.ProviderID != ""
}

// upToDate reports whether the status of a pool member agrees with the list of its shard. The
// status of a pool member that is being deleted does not depend on the list.
func upToDate(nstanceMachine *v1beta1.NstanceMachine, listed *shard.Instance, missing bool) bool {
	if !nstanceMachine.DeletionTimestamp.IsZero() || serverDeleted(nstanceMachine) {
		return true
	}
	if listed == nil {
		return !missing
	}
	if listed.ProviderID != "" && listed.ProviderID != nstanceMachine.Status.ProviderID {
		return false
	}
	current := meta.FindStatusCondition(nstanceMachine.Status.Conditions, v1beta1.ConditionReady)
	wanted := instanceReadiness(listed)
	if wanted.Reason == v1beta1.ReasonProvisioning && current != nil && current.Reason == v1beta1.ReasonProviderError {
		// The list does not contain errors of the provider.
		return true
	}
	return current != nil && current.Reason == wanted.Reason &&
		// The message from a deletion notice has more details.
		(current.Message == wanted.Message || wanted.Reason == v1beta1.ReasonServerDeleted)
}

// Every write contains the resource version of the object that it is based on. The existence
// and the shard of an instance are stored only in the NstanceMachine. A write based on a stale
// cache, such as a write of a new leader, would erase them, and a second instance would be
// created.

// report writes the result of a sync: first finalizer, annotations and provider id, then the
// status with the generation of that spec, and finally the Node of the Machine. It returns the
// delay until the next sync.
func (c *Controller) report(ctx context.Context, observed observation, done outcome, state *syncState) (time.Duration, error) {
	nstanceMachine := observed.nstanceMachine
	nodes, foreign := c.nodesOf(nstanceMachine, observed, done)
	if observed.paused == "" && nstanceMachine.DeletionTimestamp.IsZero() {
		id := wantedProviderID(nstanceMachine.Spec.ProviderID, reportedProviderID(nstanceMachine, done), nodes, foreign)
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
	c.recordNodeProblem(nstanceMachine, status, nodes, foreign, state)
	switch {
	case observed.paused != "":
		return 0, nil
	case foreign != "":
		return controllers.ForeignRecheck, nil
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

// nodesOf returns the Nodes whose provider id matches the instance, and why the shard may not name
// them. A Node that it may not name is not returned.
func (c *Controller) nodesOf(nstanceMachine *v1beta1.NstanceMachine, observed observation, done outcome) (nodes []*corev1.Node, foreign string) {
	id := reportedProviderID(nstanceMachine, done)
	if id == "" {
		return nil, ""
	}
	nodes, foreign = c.nodes.OfInstance(cmp.Or(done.shard, observed.shardID), id)
	if foreign != "" {
		return nil, foreign
	}
	return nodes, ""
}

// reportedProviderID returns the provider id that the shard has reported, "" before its first
// report.
func reportedProviderID(nstanceMachine *v1beta1.NstanceMachine, done outcome) string {
	if done.instance != nil && done.instance.ProviderID != "" {
		return done.instance.ProviderID
	}
	return nstanceMachine.Status.ProviderID
}

// applyNstanceMachine returns all fields outside the status that the operator owns.
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

// applyStatus returns all fields of the status that the operator owns.
func applyStatus(nstanceMachine *v1beta1.NstanceMachine, status v1beta1.NstanceMachineStatus) *applyv1beta1.NstanceMachineApplyConfiguration {
	return applyv1beta1.NstanceMachine(nstanceMachine.Name, nstanceMachine.Namespace).
		WithUID(nstanceMachine.UID).
		WithResourceVersion(nstanceMachine.ResourceVersion).
		WithStatus(controller.ApplyConfiguration[applyv1beta1.NstanceMachineStatusApplyConfiguration](status))
}

// eventReasons are the reasons of the condition Ready that need attention: an event is
// recorded for them.
var eventReasons = []string{
	v1beta1.ReasonUnknownShard,
	v1beta1.ReasonNoShard,
	v1beta1.ReasonShardUnreachable,
	v1beta1.ReasonWrongShard,
	v1beta1.ReasonOtherCluster,
	v1beta1.ReasonInstanceRefused,
	v1beta1.ReasonOutOfCapacity,
	v1beta1.ReasonInstanceUnknown,
	v1beta1.ReasonInstanceFailed,
	v1beta1.ReasonProviderError,
	v1beta1.ReasonServerDeleted,
}

// reasonInstanceDeleted: the instance was deleted on request. The event has type Normal.
const reasonInstanceDeleted = "InstanceDeleted"

// reasonDeletingInstance: the shard has accepted the deletion of the instance.
const reasonDeletingInstance = "DeletingInstance"

// wantedReasons are the reasons of shards for deletions that follow from a configuration or a
// request. Other reasons, such as unhealthy, are problems of an instance.
var wantedReasons = []string{"scale-down", "requested", "config-drift", "expired", "rotated", "replaced", "not-preferred"}

// recordProblem records an event if the new status has a new problem.
func (c *Controller) recordProblem(observed observation, status v1beta1.NstanceMachineStatus) {
	nstanceMachine := observed.nstanceMachine
	problem := controller.TurnedFalse(nstanceMachine.Status.Conditions, status.Conditions, v1beta1.ConditionReady)
	if problem == nil || !slices.Contains(eventReasons, problem.Reason) {
		return
	}
	action := "CreateInstance"
	if meta.IsStatusConditionTrue(status.Conditions, v1beta1.ConditionInstanceCreated) {
		action = "FollowInstance"
	}
	if problem.Reason == v1beta1.ReasonServerDeleted && c.deletionWanted(observed) {
		controller.Record(c.recorder, nstanceMachine, reasonInstanceDeleted, action, problem.Message)
		return
	}
	controller.Warn(c.recorder, nstanceMachine, problem.Reason, action, problem.Message)
}

// deletionWanted reports whether the shard deletes the instance on request: the reason that
// the shard reports is such a request, the pool has selected the instance, or the pool is
// being deleted.
func (c *Controller) deletionWanted(observed observation) bool {
	if observed.notice != nil && observed.notice.Reason != "" {
		return slices.Contains(wantedReasons, observed.notice.Reason)
	}
	if !observed.poolMember {
		return false
	}
	scale, err := c.observePoolScale(observed)
	if err != nil || scale.pool == nil {
		return false
	}
	if !scale.pool.DeletionTimestamp.IsZero() || slices.Contains(scale.reported.RemoveFirst, observed.instanceID) {
		return true
	}
	return slices.ContainsFunc(scale.groups, func(group *v1beta1.NstanceShardGroup) bool {
		return string(group.Spec.Shard) == observed.shardID &&
			(!group.DeletionTimestamp.IsZero() || slices.Contains(group.Spec.RemoveFirst, observed.instanceID))
	})
}

// recordNodeProblem records an event when a second Node begins to match, and when the shard may
// not name the Node.
func (c *Controller) recordNodeProblem(nstanceMachine *v1beta1.NstanceMachine, status v1beta1.NstanceMachineStatus, nodes []*corev1.Node, foreign string, state *syncState) {
	reason, note := "", ""
	switch {
	case foreign != "":
		reason, note = v1beta1.ReasonNodeOfOtherShard, foreign+": the provider id is not used"
	case len(nodes) > 1:
		reason, note = v1beta1.ReasonAmbiguousProviderID, fmt.Sprintf("provider id %q matches %d Nodes", status.ProviderID, len(nodes))
	}
	if reason != "" && reason != state.nodeProblem {
		controller.Warn(c.recorder, nstanceMachine, reason, "MatchNode", note)
	}
	state.nodeProblem = reason
}
