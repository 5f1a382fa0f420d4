// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// observation is the cached state from which plan decides.
type observation struct {
	// configured is true when the shard is in the configuration.
	configured bool
	// synced is true when the cache has all groups of the shard.
	synced bool
	// reachable is true when the shard is connected. If it is not, lost is the reason.
	reachable bool
	lost      error
	// group is the group that the shard reports, nil if the shard does not have it. While
	// synced is false, nil means unknown.
	group *shard.Group
	// paused names the object that pauses the group, "" if it is not paused.
	paused string
	// settling is true if the group was deleted so recently that the cache may be older.
	settling bool
	// unlisted is true while the deletion of the group awaits a list that confirms it;
	// confirmed is true afterwards.
	unlisted, confirmed bool
	// nextCorrection is when the group may be sent again after another writer has repeatedly
	// reverted it; zero for at once.
	nextCorrection time.Time
	// failure is the last error of the shard's provider, "" if it no longer applies.
	failure string
	drains  drains
	// drainsKnown is true when the shard has reported all drains since the operator
	// started.
	drainsKnown bool
}

// drains is the number of instances that are being drained, the number of these
// drains that are blocked, and the entries of status.blockedDrains.
type drains struct {
	draining, blocked int
	list              []v1beta1.BlockedDrain
	// waiting are sentences about the drains that wait for a Pod to complete.
	waiting []string
}

// step is the action of a sync. At most one call is made to the shard.
type step int

const (
	// nothing: the group matches the spec, or its state is unknown.
	nothing step = iota
	// upsert: the group differs from the spec.
	upsert
	// remove: the shard group is being deleted.
	remove
	// finalize: the shard has confirmed the deletion. No call is made.
	finalize
	// abandon: the shard group is being deleted, its shard is lost, and an administrator
	// has given up the instances. No call is made.
	abandon
	// retain: the shard group is being deleted, and its group stays. No call is made.
	retain
)

// plan returns the step that brings the group closer to the spec. Missing information changes
// nothing: no call is made without a synced and connected shard, or if the server would reject
// it. The steps abandon and retain, which need no confirmation by the shard, are decisions of
// the user.
func plan(object *v1beta1.NstanceShardGroup, observed observation, rejected *rejection, now time.Time) step {
	if !rejected.stillApplies(object, observed.group, now) {
		rejected = nil
	}
	switch {
	case retained(object, observed):
		return retain
	case abandoned(object, observed):
		return abandon
	case !observed.configured || !observed.synced || !observed.reachable || observed.paused != "":
		return nothing
	case !object.DeletionTimestamp.IsZero():
		if !slices.Contains(object.Finalizers, v1beta1.FinalizerShardGroup) {
			return nothing
		}
		if observed.confirmed {
			return finalize
		}
		if observed.group != nil && observed.group.Deleting || observed.settling || observed.unlisted ||
			blockedByShard(object, observed.group, rejected) {
			return nothing
		}
		return remove
	case observed.group != nil && inOrder(&object.Spec, observed.group) && recorded(object, observed.group):
		return nothing
	case rejected != nil, blockedByShard(object, observed.group, rejected), now.Before(observed.nextCorrection):
		return nothing
	default:
		return upsert
	}
}

// inOrder reports whether the group on the server matches spec. The server chooses settings
// that spec omits, but must not keep them from an earlier spec: if a server reports declared
// settings, they must be the settings of spec. What it does not know does not count. removeFirst does
// not count for a server that lists no instances, because it ignores removeFirst, nor do a grant and
// replace for a server that reports no progress.
func inOrder(spec *v1beta1.NstanceShardGroupSpec, group *shard.Group) bool {
	wanted := wantedSettings(spec, group)
	return group.Size == spec.Size && !group.Deleting &&
		(!group.ListsInstances || slices.Equal(spec.RemoveFirst, group.RemoveFirst)) &&
		(group.Progress == nil || controllers.ShardGrant(spec.Rotation).Equal(group.Rotation) && slices.Equal(spec.Replace, group.Replace)) &&
		controllers.SettingsInEffect(wanted, group.GroupSettings) &&
		(group.Declared == nil || group.Declared.Equal(wanted))
}

// wanted returns the configuration to send for object.
func wanted(object *v1beta1.NstanceShardGroup, group *shard.Group) shard.GroupConfig {
	revision := revisionOf(object)
	return shard.GroupConfig{
		GroupSettings: wantedSettings(&object.Spec, group),
		Size:          object.Spec.Size,
		RemoveFirst:   object.Spec.RemoveFirst,
		Rotation:      controllers.ShardGrant(object.Spec.Rotation),
		Replace:       object.Spec.Replace,
		Revision:      &revision,
		Replaces:      replaced(object, group),
	}
}

// outcome is the result of the step.
type outcome struct {
	step step
	err  error
	now  metav1.Time
}
