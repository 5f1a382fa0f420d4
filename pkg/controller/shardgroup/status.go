// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

// connecting is the message while nothing can be said about a shard.
const connecting = "the shard is being connected"

// newStatus is the status of object after a sync. What the shard has not told
// stays as it was: an unreachable shard keeps its replicas and provider ids.
func newStatus(object *v1beta1.NstanceShardGroup, seen observation, done outcome, refused *rejection) v1beta1.NstanceShardGroupStatus {
	status := *object.Status.DeepCopy()
	switch {
	case seen.group != nil:
		status.IsStatic = ptr.To(seen.group.Static)
		status.Replicas = ptr.To(seen.group.ActualSize)
		status.ProviderIDs = slices.Sorted(slices.Values(seen.group.ProviderIDs))
		status.Config = reportedConfig(seen.group)
	case seen.synced:
		status.IsStatic = ptr.To(false)
		status.Replicas = ptr.To[int32](0)
		status.ProviderIDs = nil
		status.Config = nil
	}
	if !equality.Semantic.DeepEqual(status, object.Status) {
		status.LastSyncTime = ptr.To(done.now.Rfc3339Copy())
	}
	status.ObservedGeneration = object.Generation
	if seen.synced {
		setDrains(&status, object.Generation, seen.drains)
	}
	setConditions(&status, object, seen, done, refused)
	return status
}

func reportedConfig(group *shard.Group) *v1beta1.GroupConfig {
	return &v1beta1.GroupConfig{
		Template:     group.Template,
		Subnets:      slices.Clone(group.Subnets),
		InstanceType: group.InstanceType,
		Vars:         maps.Clone(group.Vars),
	}
}

// setDrains writes the numbers always, so that none is 0 and not unknown. The
// condition is there since the first drain, as few groups ever have one.
func setDrains(status *v1beta1.NstanceShardGroupStatus, generation int64, seen drains) {
	status.Draining = ptr.To(int32(seen.draining))
	status.DrainsBlocked = ptr.To(int32(seen.blocked))
	set := func(value metav1.ConditionStatus, reason string) {
		controller.SetCondition(&status.Conditions, generation, v1beta1.ConditionDrainsProgressing, value, reason, seen.message)
	}
	switch {
	case seen.blocked > 0:
		set(metav1.ConditionFalse, v1beta1.ReasonDrainBlocked)
	case seen.draining > 0:
		set(metav1.ConditionTrue, v1beta1.ReasonDraining)
	case meta.FindStatusCondition(status.Conditions, v1beta1.ConditionDrainsProgressing) != nil:
		set(metav1.ConditionTrue, v1beta1.ReasonNoDrains)
	}
}

func setConditions(status *v1beta1.NstanceShardGroupStatus, object *v1beta1.NstanceShardGroup, seen observation, done outcome, refused *rejection) {
	set := func(kind string, value metav1.ConditionStatus, reason, message string) {
		controller.SetCondition(&status.Conditions, object.Generation, kind, value, reason, message)
	}
	id := string(object.Spec.Shard)

	// A shard that was never connected since the operator started is not known
	// to be away: the last words stand until it answers or fails to.
	reachable := meta.FindStatusCondition(object.Status.Conditions, v1beta1.ConditionShardReachable)
	switch {
	case !seen.configured:
		reachable = &metav1.Condition{Status: metav1.ConditionFalse, Reason: v1beta1.ReasonUnknownShard,
			Message: fmt.Sprintf("shard %q is not configured", id)}
	case shard.IsUnreachable(done.err):
		reachable = &metav1.Condition{Status: metav1.ConditionFalse, Reason: v1beta1.ReasonShardUnreachable,
			Message: shard.Message(done.err)}
	case seen.reachable && seen.synced:
		reachable = &metav1.Condition{Status: metav1.ConditionTrue, Reason: v1beta1.ReasonReachable}
	case seen.lost != nil:
		reachable = &metav1.Condition{Status: metav1.ConditionFalse, Reason: v1beta1.ReasonShardUnreachable,
			Message: shard.Message(seen.lost)}
	case reachable == nil:
		reachable = &metav1.Condition{Status: metav1.ConditionUnknown, Reason: v1beta1.ReasonNotSynced, Message: connecting}
	}
	set(v1beta1.ConditionShardReachable, reachable.Status, reachable.Reason, reachable.Message)

	switch {
	case refused != nil && refused.generation == object.Generation:
		set(v1beta1.ConditionConfigValid, metav1.ConditionFalse, v1beta1.ReasonConfigRejected, refused.message)
	case seen.group != nil && inOrder(&object.Spec, seen.group):
		set(v1beta1.ConditionConfigValid, metav1.ConditionTrue, v1beta1.ReasonConfigAccepted, "")
	}

	ready, reason, message := readiness(status, object, seen, done, reachable)
	if ready == "" {
		return
	}
	set(v1beta1.ConditionReady, ready, reason, message)
}

// readiness tells whether the shard runs what the spec asks for; an empty
// status means that nothing new is known.
func readiness(
	status *v1beta1.NstanceShardGroupStatus, object *v1beta1.NstanceShardGroup, seen observation, done outcome, reachable *metav1.Condition,
) (ready metav1.ConditionStatus, reason, message string) {
	valid := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionConfigValid)
	switch {
	case !object.DeletionTimestamp.IsZero():
		return metav1.ConditionFalse, v1beta1.ReasonDeleting, awaited(seen, done, reachable)
	case reachable.Status == metav1.ConditionFalse:
		return metav1.ConditionFalse, reachable.Reason, reachable.Message
	case !seen.synced:
		if was := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionReady); was != nil && was.ObservedGeneration == object.Generation {
			return "", "", ""
		}
		return metav1.ConditionUnknown, v1beta1.ReasonNotSynced, connecting
	case valid != nil && valid.Status == metav1.ConditionFalse && valid.ObservedGeneration == object.Generation:
		return metav1.ConditionFalse, v1beta1.ReasonConfigRejected, valid.Message
	case done.err != nil:
		return metav1.ConditionFalse, v1beta1.ReasonUpsertFailed, shard.Message(done.err)
	case seen.paused != "" && (seen.group == nil || !inOrder(&object.Spec, seen.group)):
		return metav1.ConditionFalse, v1beta1.ReasonPaused, seen.paused
	case seen.failure != "":
		return metav1.ConditionFalse, v1beta1.ReasonProviderError, seen.failure
	case seen.group == nil || !inOrder(&object.Spec, seen.group) || seen.group.ActualSize != object.Spec.Size:
		return metav1.ConditionFalse, v1beta1.ReasonScaling,
			fmt.Sprintf("%d of %d instances run", ptr.Deref(status.Replicas, 0), object.Spec.Size)
	default:
		return metav1.ConditionTrue, v1beta1.ReasonReady, ""
	}
}

// awaited is what a shard group that is being deleted waits for.
func awaited(seen observation, done outcome, reachable *metav1.Condition) string {
	const unconfirmed = "the shard has not confirmed that the group is gone"
	switch {
	case reachable.Status != metav1.ConditionTrue:
		return unconfirmed + ": " + reachable.Message
	case done.err != nil:
		return unconfirmed + ": " + shard.Message(done.err)
	case seen.paused != "":
		return unconfirmed + ": " + seen.paused
	case seen.group != nil && seen.group.Deleting:
		return "the shard is ending the instances of the group"
	default:
		return unconfirmed
	}
}

// applyStatus is status as the whole of what the operator owns in it.
func applyStatus(object *v1beta1.NstanceShardGroup, status v1beta1.NstanceShardGroupStatus) *applyv1beta1.NstanceShardGroupApplyConfiguration {
	applied := applyv1beta1.NstanceShardGroupStatus().
		WithObservedGeneration(status.ObservedGeneration).
		WithProviderIDs(status.ProviderIDs...).
		WithConditions(controller.ApplyConditions(status.Conditions)...)
	applied.IsStatic = status.IsStatic
	applied.Replicas = status.Replicas
	applied.Draining = status.Draining
	applied.DrainsBlocked = status.DrainsBlocked
	applied.LastSyncTime = status.LastSyncTime
	if status.Config != nil {
		applied.WithConfig(applyv1beta1.GroupConfig().
			WithTemplate(status.Config.Template).
			WithSubnets(status.Config.Subnets...).
			WithInstanceType(status.Config.InstanceType).
			WithVars(status.Config.Vars))
	}
	return applyv1beta1.NstanceShardGroup(object.Name, object.Namespace).WithUID(object.UID).WithStatus(applied)
}
