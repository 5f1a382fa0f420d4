// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// observation is the cached state that a sync decides from.
type observation struct {
	// configured is true when the shard is in the configuration.
	configured bool
	// synced is true when the cache has all groups of the shard.
	synced bool
	// reachable is true when the shard is connected, and lost is the reason when it is
	// not.
	reachable bool
	lost      error
	// group is the group that the shard reports, nil when it has none. While synced is
	// false, nil means unknown.
	group *shard.Group
	// paused is what pauses the group, "" when nothing does.
	paused string
	// settling is true when the group was deleted so recently that the cache may be
	// older.
	settling bool
	// unlisted is true while the list is awaited that confirms the deletion of the group,
	// and confirmed afterwards.
	unlisted, confirmed bool
	// nextCorrection is the time before which the group is not sent again, because another
	// writer reverts it each time; zero for none.
	nextCorrection time.Time
	// failure is the last error of the shard's provider, "" when it no longer applies.
	failure string
	drains  drains
	// drainsKnown is true when the shard has reported all drains since the operator
	// started.
	drainsKnown bool
}

// drains is the number of instances that are being drained, the number of these
// drains that are blocked, and why.
type drains struct {
	draining, blocked int
	message           string
}

// step is the one call, if any, that a sync makes to the shard.
type step int

const (
	// nothing: the group is in order, or its state is unknown.
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

// plan returns the call that brings the group closer to the spec. It never acts on
// missing information: without a synced and connected shard there is no call. Nor is
// there one that the server would reject. The steps without a call that the shard confirms,
// abandon and retain, are decisions of the user.
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

// inOrder reports whether the group that the server reports matches spec. Settings
// that spec leaves out are the server's to choose, but not to keep from an earlier
// spec: a server that reports what was declared must report what spec declares.
// removeFirst does not count for a server that lists no instances, because it
// ignores removeFirst.
func inOrder(spec *v1beta1.NstanceShardGroupSpec, group *shard.Group) bool {
	wanted := wantedSettings(spec.GroupSettings, group.Static)
	return group.Size == spec.Size && !group.Deleting &&
		(!group.ListsInstances || slices.Equal(spec.RemoveFirst, group.RemoveFirst)) &&
		inEffect(wanted, group.GroupSettings) &&
		(group.Declared == nil || group.Declared.Equal(wanted))
}

// wanted returns the configuration to send.
func wanted(object *v1beta1.NstanceShardGroup, group *shard.Group) shard.GroupConfig {
	revision := revisionOf(object)
	return shard.GroupConfig{
		GroupSettings: wantedSettings(object.Spec.GroupSettings, group != nil && group.Static),
		Size:          object.Spec.Size,
		RemoveFirst:   object.Spec.RemoveFirst,
		Revision:      &revision,
		Replaces:      replaced(object, group),
	}
}

// outcome is the result of the call.
type outcome struct {
	step step
	err  error
	now  metav1.Time
}
