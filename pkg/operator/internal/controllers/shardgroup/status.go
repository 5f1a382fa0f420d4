// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// connecting is the message while the state of a shard is unknown.
const connecting = "the shard is being connected"

// newStatus returns the status of object after a sync. Fields that the shard has not
// reported stay: an unreachable shard keeps its replicas and provider ids.
func newStatus(object *v1beta1.NstanceShardGroup, observed observation, result outcome, rejected *rejection) v1beta1.NstanceShardGroupStatus {
	status := *object.Status.DeepCopy()
	switch {
	case observed.group != nil:
		status.IsStatic = ptr.To(observed.group.Static)
		status.MinReplicas = minReplicas(observed.group)
		status.Replicas = ptr.To(observed.group.ActualSize)
		status.ProviderIDs = slices.Sorted(slices.Values(observed.group.ProviderIDs))
		status.DeletionOrder = controllers.ReportedDeletionOrder(observed.group)
		status.Candidates = controllers.ReportedCandidates(observed.group.CandidateUse)
		status.Config = controllers.ReportedConfig(observed.group.GroupSettings)
	case observed.synced:
		status.IsStatic = ptr.To(false)
		status.MinReplicas = nil
		status.Replicas = ptr.To[int32](0)
		status.ProviderIDs = nil
		status.DeletionOrder = nil
		status.Candidates = nil
		status.Config = nil
	}
	if !equality.Semantic.DeepEqual(status, object.Status) {
		status.LastSyncTime = ptr.To(result.now.Rfc3339Copy())
	}
	status.ObservedGeneration = object.Generation
	if observed.synced && (observed.drainsKnown || observed.drains.draining > 0 || ptr.Deref(status.DrainingReplicas, 0) == 0) {
		setDrains(&status, object.Generation, observed.drains)
	}
	setConditions(&status, object, observed, result, rejected)
	return status
}

// minReplicas returns the smallest size of a group, nil if it may be 0.
func minReplicas(group *shard.Group) *int32 {
	if group.MinSize == 0 {
		return nil
	}
	return ptr.To(group.MinSize)
}

// maxListedDrains is the number of drains that the condition DrainsProgressing names.
const maxListedDrains = 3

// setDrains must be called only after the shard has reported its drains: drains from before
// the operator started continue. It always sets the numbers, because 0 drains differ from an
// unknown number. The condition is added at the first drain, because few groups ever have
// drains.
func setDrains(status *v1beta1.NstanceShardGroupStatus, generation int64, observed drains) {
	status.DrainingReplicas = ptr.To(int32(observed.draining))
	status.BlockedReplicas = ptr.To(int32(observed.blocked))
	if !sameDrains(status.BlockedDrains, observed.list) {
		status.BlockedDrains = observed.list
	}
	set := func(value metav1.ConditionStatus, reason string) {
		controller.SetCondition(&status.Conditions, generation, v1beta1.ConditionDrainsProgressing, value, reason, drainsMessage(observed))
	}
	switch {
	case observed.blocked > 0:
		set(metav1.ConditionFalse, v1beta1.ReasonDrainBlocked)
	case observed.draining > 0:
		set(metav1.ConditionTrue, v1beta1.ReasonDraining)
	case meta.FindStatusCondition(status.Conditions, v1beta1.ConditionDrainsProgressing) != nil:
		set(metav1.ConditionTrue, v1beta1.ReasonNoDrains)
	}
}

// sameDrains reports whether two lists have the same entries. The order has no meaning, and
// the API server may store another one.
func sameDrains(a, b []v1beta1.BlockedDrain) bool {
	byInstance := func(a, b v1beta1.BlockedDrain) int { return cmp.Compare(a.Instance, b.Instance) }
	return equality.Semantic.DeepEqual(slices.SortedFunc(slices.Values(a), byInstance), slices.SortedFunc(slices.Values(b), byInstance))
}

// drainsMessage describes the drains that have been blocked for the longest time, and counts
// the others. If no drain is blocked, it describes drains that wait.
func drainsMessage(observed drains) string {
	var messages []string
	count := observed.blocked
	if count == 0 {
		count = len(observed.waiting)
		messages = append(messages, observed.waiting[:min(count, maxListedDrains)]...)
	}
	for i := range observed.list[:min(len(observed.list), maxListedDrains)] {
		messages = append(messages, observed.list[i].Message)
	}
	if more := count - len(messages); more > 0 {
		messages = append(messages, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(messages, "; ")
}

func setConditions(status *v1beta1.NstanceShardGroupStatus, object *v1beta1.NstanceShardGroup, observed observation, result outcome, rejected *rejection) {
	set := func(kind string, value metav1.ConditionStatus, reason, message string) {
		controller.SetCondition(&status.Conditions, object.Generation, kind, value, reason, message)
	}
	id := string(object.Spec.Shard)
	if rejected != nil && rejected.unclear != nil && result.err == nil {
		result.err = rejected.unclear
	}

	// A shard that was never connected since the operator started is not known to be
	// unreachable: the condition stays until the first connection succeeds or fails.
	reachable := meta.FindStatusCondition(object.Status.Conditions, v1beta1.ConditionShardReachable)
	switch {
	case !observed.configured:
		reachable = &metav1.Condition{Status: metav1.ConditionFalse, Reason: v1beta1.ReasonUnknownShard,
			Message: fmt.Sprintf("shard %q is not configured", id)}
	case shard.IsUnreachable(result.err):
		reachable = &metav1.Condition{Status: metav1.ConditionFalse, Reason: controllers.UnreachableReason(result.err),
			Message: shard.Message(result.err)}
	case observed.reachable && observed.synced:
		reachable = &metav1.Condition{Status: metav1.ConditionTrue, Reason: v1beta1.ReasonReachable}
	case observed.lost != nil:
		reachable = &metav1.Condition{Status: metav1.ConditionFalse, Reason: controllers.UnreachableReason(observed.lost),
			Message: shard.Message(observed.lost)}
	case reachable == nil:
		reachable = &metav1.Condition{Status: metav1.ConditionUnknown, Reason: v1beta1.ReasonNotSynced, Message: connecting}
	}
	set(v1beta1.ConditionShardReachable, reachable.Status, reachable.Reason, reachable.Message)
	if observed.paused == "" {
		set(v1beta1.ConditionPaused, metav1.ConditionFalse, v1beta1.ReasonNotPaused, "")
	} else {
		set(v1beta1.ConditionPaused, metav1.ConditionTrue, v1beta1.ReasonPaused, observed.paused)
	}

	switch {
	case rejected != nil && !rejected.stale && rejected.unclear == nil && rejected.revision.Generation == object.Generation:
		set(v1beta1.ConditionConfigValid, metav1.ConditionFalse, v1beta1.ReasonConfigRejected, rejected.message)
	case staticConflict(&object.Spec, observed.group) != "":
		set(v1beta1.ConditionConfigValid, metav1.ConditionFalse, v1beta1.ReasonConfigRejected, staticConflict(&object.Spec, observed.group))
	case unsupported(&object.Spec, observed.group) != "":
		set(v1beta1.ConditionConfigValid, metav1.ConditionFalse, v1beta1.ReasonUnsupportedByServer, unsupported(&object.Spec, observed.group))
	case observed.group != nil && inOrder(&object.Spec, observed.group):
		set(v1beta1.ConditionConfigValid, metav1.ConditionTrue, v1beta1.ReasonConfigAccepted, "")
	}

	ready, reason, message := readiness(status, object, observed, result, reachable, shardAhead(object, observed, rejected))
	if ready == "" {
		return
	}
	set(v1beta1.ConditionReady, ready, reason, message)
}

// readiness returns the status, reason and message of the condition Ready. An empty status
// means that it has not changed. ahead is the result of shardAhead.
func readiness(
	status *v1beta1.NstanceShardGroupStatus, object *v1beta1.NstanceShardGroup, observed observation, result outcome, reachable *metav1.Condition, ahead string,
) (ready metav1.ConditionStatus, reason, message string) {
	valid := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionConfigValid)
	blocked := ahead != "" && reachable.Status == metav1.ConditionTrue
	switch {
	case blocked:
		return metav1.ConditionFalse, v1beta1.ReasonShardAhead, ahead
	case !object.DeletionTimestamp.IsZero():
		return metav1.ConditionFalse, v1beta1.ReasonDeleting, awaited(object, observed, result, reachable)
	case reachable.Status == metav1.ConditionFalse:
		return metav1.ConditionFalse, reachable.Reason, reachable.Message
	case !observed.synced:
		if was := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionReady); was != nil && was.ObservedGeneration == object.Generation {
			return "", "", ""
		}
		return metav1.ConditionUnknown, v1beta1.ReasonNotSynced, connecting
	case observed.paused != "" && observed.group == nil:
		if meta.FindStatusCondition(status.Conditions, v1beta1.ConditionReady) != nil {
			return "", "", ""
		}
		return metav1.ConditionUnknown, v1beta1.ReasonPaused, observed.paused
	case valid != nil && valid.Status == metav1.ConditionFalse && valid.ObservedGeneration == object.Generation:
		return metav1.ConditionFalse, valid.Reason, valid.Message
	case result.err != nil:
		return metav1.ConditionFalse, v1beta1.ReasonUpsertFailed, shard.Message(result.err)
	case observed.failure != "":
		return metav1.ConditionFalse, v1beta1.ReasonProviderError, observed.failure
	case ptr.Deref(status.BlockedReplicas, 0) > 0:
		return metav1.ConditionFalse, v1beta1.ReasonDrainBlocked, "a drain is blocked; status.blockedDrains has the reason"
	case observed.group != nil && !inOrder(&object.Spec, observed.group) && result.now.Time.Before(observed.nextCorrection):
		return metav1.ConditionFalse, v1beta1.ReasonDriftRepeated, "another writer changes the group on the shard"
	default:
		return metav1.ConditionTrue, v1beta1.ReasonReady, ""
	}
}

// awaited returns what the deletion of a shard group waits for.
func awaited(object *v1beta1.NstanceShardGroup, observed observation, result outcome, reachable *metav1.Condition) string {
	const unconfirmed = "the shard has not confirmed the deletion of the group"
	switch {
	case canAbandon(object, observed):
		return fmt.Sprintf("%s: %s; %s", unconfirmed, reachable.Message, howToAbandon(object))
	case reachable.Status != metav1.ConditionTrue:
		return unconfirmed + ": " + reachable.Message
	case result.err != nil:
		return unconfirmed + ": " + shard.Message(result.err)
	case observed.paused != "":
		return unconfirmed + ": " + observed.paused
	case observed.group != nil && observed.group.Deleting:
		return "the shard is terminating the instances of the group"
	default:
		return unconfirmed
	}
}

// reportDelay is the longest time that a status waits for the effect of a size that the shard has accepted:
// if the instances run or are terminated within it, one write reports both.
const reportDelay = 2 * controller.BatchPeriod

// reportWait returns how much longer a status may wait for the effect of a new size, 0 if it is to be
// written now. It may wait only if it reports nothing but the new generation: what went wrong, and what
// the shard has answered, is reported at once. Until then status and conditions have the generation that
// they were computed from, which kubectl wait compares with the generation of the object. After a restart
// no status waits.
func (c *Controller) reportWait(object *v1beta1.NstanceShardGroup, observed observation, status v1beta1.NstanceShardGroupStatus, now time.Time) time.Duration {
	if observed.group == nil || observed.group.ActualSize == object.Spec.Size ||
		!meta.IsStatusConditionTrue(status.Conditions, v1beta1.ConditionReady) || !sameButForGeneration(object.Status, status) {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	last, found := c.sent[cache.MetaObjectToName(object)]
	if !found || !last.isOf(object) {
		return 0
	}
	return max(0, last.accepted.Add(reportDelay).Sub(now))
}

// sameButForGeneration reports whether two statuses differ in nothing but the generations that they were
// computed from.
func sameButForGeneration(before, after v1beta1.NstanceShardGroupStatus) bool {
	after.ObservedGeneration = before.ObservedGeneration
	after.Conditions = slices.Clone(after.Conditions)
	for i := range after.Conditions {
		if was := meta.FindStatusCondition(before.Conditions, after.Conditions[i].Type); was != nil {
			after.Conditions[i].ObservedGeneration = was.ObservedGeneration
		}
	}
	return equality.Semantic.DeepEqual(before, after)
}

// applyStatus returns all fields of the status that the operator owns.
func applyStatus(object *v1beta1.NstanceShardGroup, status v1beta1.NstanceShardGroupStatus) *applyv1beta1.NstanceShardGroupApplyConfiguration {
	return applyv1beta1.NstanceShardGroup(object.Name, object.Namespace).WithUID(object.UID).
		WithStatus(controller.ApplyConfiguration[applyv1beta1.NstanceShardGroupStatusApplyConfiguration](status))
}
