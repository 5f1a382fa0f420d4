// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/providerid"
	"nstance.dev/operator/pkg/shard"
)

// volumeTimeout is how long a Node without Pods waits for their volumes to be
// detached. A detachment that fails must not hold the machine until its end.
const volumeTimeout = 2 * time.Minute

// echo is how long the cache has to show a cordon.
const echo = time.Second

// observation is what is known about an instance at the moment of a sync.
type observation struct {
	// notice is what the shard tells of the instance's end, nil when it tells of
	// none. While settled is false nil means nothing.
	notice  *shard.Notice
	settled bool
	// marked are the Nodes that carry the mark of this instance.
	marked []*corev1.Node
	// acknowledged: the shard has an answer to this announcement.
	acknowledged bool
	// nodes are the Nodes that the cache has for the provider id. absent: a live
	// list had none.
	nodes  []*corev1.Node
	absent bool
	pods   podsSeen
}

// podsSeen is what is known about the Pods of a Node.
type podsSeen struct {
	// watched: they are being watched. synced: all of them have been seen.
	watched, synced bool
	// sorted: of each it is known whether it has to leave. Until listAfter nobody
	// tries to find that out again.
	sorted    bool
	listAfter time.Time
	// remaining are those that have to leave and have not.
	remaining []*corev1.Pod
	// attached is how many volumes are attached to the Node for Pods that have
	// left; emptySince is since when none remained.
	attached   int
	emptySince time.Time
}

// step is what a sync does.
type step int

const (
	// nothing: wait for news, or for a moment.
	nothing step = iota
	// forget: the shard does not want a drain.
	forget
	// ask the shard what has become of an instance without a notice.
	ask
	// lookUp the Node, live: the cache does not have it.
	lookUp
	// report that more than one Node may be meant.
	report
	cordon
	// watchPods of the Node.
	watchPods
	// sortPods into those that have to leave and those that stay.
	sortPods
	// evict the Pods that remain.
	evict
	// detach: wait until the volumes of Pods that have left are detached.
	detach
	// acknowledge the drain.
	acknowledge
)

// decision is a step, and when to look again if no news came before, zero for
// never.
type decision struct {
	step  step
	until time.Time
	// outcome is how a drain ends that is forgotten or acknowledged.
	outcome outcome
}

// plan decides what is next.
func plan(seen observation, now time.Time) decision {
	notice := seen.notice
	switch {
	case notice == nil && !seen.settled:
		return decision{step: nothing}
	case notice == nil && len(seen.marked) == 0:
		return decision{step: forget, outcome: withdrawn}
	case notice == nil:
		return decision{step: ask}
	case notice.State != shard.Draining:
		return decision{step: forget, outcome: deleted}
	case !seen.acknowledged && overdue(notice, now):
		return decision{step: acknowledge, outcome: timedOut}
	case len(seen.nodes) == 1 && !seen.nodes[0].Spec.Unschedulable:
		// Also when there was no Node at the time of the acknowledgement: no Pod is to
		// start on a machine that is about to go. The drain goes on when the cache
		// shows the cordon, so that of many Nodes all are cordoned before the Pods of
		// the first are listed.
		return decision{step: cordon, until: now.Add(echo)}
	case seen.acknowledged:
		return decision{step: nothing}
	}
	next := planDrain(seen, now)
	if !notice.DeleteAt.IsZero() {
		next.until = earliest(next.until, notice.DeleteAt)
	}
	return next
}

// overdue tells whether the shard deletes the instance now, drained or not.
func overdue(notice *shard.Notice, now time.Time) bool {
	return !notice.DeleteAt.IsZero() && !now.Before(notice.DeleteAt)
}

// planDrain decides what is next for an instance with a notice, in time.
func planDrain(seen observation, now time.Time) decision {
	pods := seen.pods
	switch {
	case len(seen.nodes) > 1:
		return decision{step: report}
	case len(seen.nodes) == 0 && providerid.Key(seen.notice.ProviderID) == "":
		// Nobody can say which Node it is not.
		return decision{step: nothing}
	case len(seen.nodes) == 0 && seen.absent:
		return decision{step: acknowledge, outcome: noNode}
	case len(seen.nodes) == 0:
		return decision{step: lookUp}
	case !pods.watched:
		return decision{step: watchPods}
	case !pods.synced:
		return decision{step: nothing}
	case !pods.sorted && now.Before(pods.listAfter):
		return decision{step: nothing, until: pods.listAfter}
	case !pods.sorted:
		return decision{step: sortPods}
	case len(pods.remaining) > 0:
		return decision{step: evict, until: graceOver(seen.nodes[0], pods.remaining)}
	case pods.attached > 0 && now.Before(pods.emptySince.Add(volumeTimeout)):
		return decision{step: detach, until: pods.emptySince.Add(volumeTimeout)}
	case pods.attached > 0:
		return decision{step: acknowledge, outcome: volumesAttached}
	default:
		return decision{step: acknowledge, outcome: drained}
	}
}

// graceOver is when the first of pods stops holding up the drain of a Node that
// has not been heard of, zero for never.
func graceOver(node *corev1.Node, pods []*corev1.Pod) time.Time {
	var first time.Time
	if !unreachable(node) {
		return first
	}
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			first = earliest(first, pod.DeletionTimestamp.Time)
		}
	}
	return first
}

// earliest is the earlier of two moments; a zero one does not count.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
