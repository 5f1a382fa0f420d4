// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/base/drainrule"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// observation is the state of an instance and its Node at the time of a sync.
type observation struct {
	// notice is the deletion notice of the instance, nil if the shard reports no notice. If
	// settled is false, nil has no meaning, because the cache of notices is not complete.
	notice  *shard.DeletionNotice
	settled bool
	// cordoned are the Nodes that the operator has cordoned for this instance.
	cordoned []*corev1.Node
	// outdated is set when the operator has cordoned the Node for this instance, and its
	// annotations do not have the reason and the time of the notice.
	outdated bool
	// acknowledged is set when the shard has the acknowledgement of this notice.
	acknowledged bool
	// expired is set when it was reported that the deadline was reached.
	expired bool
	// nodes are the cached Nodes with the provider id. notFound is set when a live
	// list did not contain any.
	nodes    []*corev1.Node
	notFound bool
	// mismatch is the Node of the last live list that may be the Node of the instance, although
	// it has another provider id; nil if there is none.
	mismatch *mismatch
	// foreign is why the shard may not name the Node, "" if it may.
	foreign string
	// hooks are the hooks of the Machine of the instance.
	hooks hooks
	pods  podsObservation
}

// podsObservation is the state of the Pods of a Node.
type podsObservation struct {
	// watched is set while the Pods are watched, synced when the watch is complete.
	watched, synced bool
	// classified is set if it is known for each Pod whether it has to leave. The Pods are not
	// listed again before listAfter.
	classified bool
	listAfter  time.Time
	// readAgainAt is when the Pods are listed again because DaemonSets could not be read, or
	// their rules are read again, zero if everything was read.
	readAgainAt time.Time
	// remaining are the Pods that have to leave and still block the drain, without those that a
	// rule skips. rules are the rules of Pods by which they are drained; a Pod without a rule has
	// the zero value.
	remaining []*corev1.Pod
	rules     map[types.UID]drainrule.Rule
	// rulesErr is the error because of which the rules of a remaining Pod are not known.
	rulesErr error
	// gracePeriodEnd is the first time at which a remaining Pod no longer blocks the drain of
	// an unreachable Node, zero on other Nodes.
	gracePeriodEnd time.Time
	// stuck are the remaining Pods that should have terminated. stuckAt is the first time at
	// which another remaining Pod should have, zero if no other Pod is being deleted.
	stuck   []stuckPod
	stuckAt time.Time
	// attached is the number of volumes of evicted Pods that are attached to the Node,
	// and emptySince the time since which no Pod remains.
	attached   int
	emptySince time.Time
}

// stuckPod is a Pod that has not terminated, and the end of its grace period.
type stuckPod struct {
	pod   *corev1.Pod
	since time.Time
}

// step is the action of a sync.
type step int

const (
	// nothing waits for a change or until a time.
	nothing step = iota
	// forget removes the state of a drain that the shard does not request.
	forget
	// checkWithdrawal queries the shard about an instance without a notice.
	checkWithdrawal
	// lookUpNode lists all Nodes live, because the cache does not have the Node.
	lookUpNode
	// reportAmbiguity reports that several Nodes match, reportMismatch that a Node with another
	// provider id may be the Node of the instance, reportForeign that the Node may belong to
	// another shard.
	reportAmbiguity
	reportMismatch
	reportForeign
	cordon
	// annotate updates the annotations of a cordoned Node after a change of the notice.
	annotate
	// watchPods starts to watch the Pods of the Node.
	watchPods
	// classifyPods finds out which Pods have to leave.
	classifyPods
	// evict evicts the remaining Pods that their rules allow to evict, and waits for the others.
	evict
	// awaitVolumes waits until the volumes of evicted Pods are detached.
	awaitVolumes
	// awaitHook waits until the Machine has no hook.
	awaitHook
	acknowledge
	// expire reports that the deadline was reached before the drain was complete.
	expire
)

// continuesEvictions reports whether evictions of the drain continue during a step.
func (s step) continuesEvictions() bool {
	switch s {
	case nothing, cordon, annotate, watchPods, classifyPods, evict:
		return true
	}
	return false
}

// decision is the next step of a drain, and the time of the next sync.
type decision struct {
	step step
	// until is the time of the next sync if nothing changes before, zero to wait for a change.
	until time.Time
	// outcome is the outcome of a drain that is forgotten, acknowledged or expired.
	outcome outcome
	// evict are the Pods to evict, and await the Pods that are not evicted because their rules
	// let them complete, until the margin before the deadline begins. Only the step evict has any.
	evict, await []*corev1.Pod
	margin       time.Duration
	// hooked is set if a hook of the Machine delays the step.
	hooked bool
}

// plan decides on the next step.
func plan(observed observation, now time.Time) decision {
	notice := observed.notice
	switch {
	case notice == nil && !observed.settled:
		return decision{step: nothing}
	case notice == nil && len(observed.cordoned) == 0:
		return decision{step: forget, outcome: withdrawn}
	case notice == nil:
		return decision{step: checkWithdrawal}
	case notice.State != shard.Draining:
		return decision{step: forget, outcome: deleted}
	case !observed.acknowledged && !observed.expired && overdue(notice, now):
		// The shard deletes the instance by its own clock. It may also have withdrawn a
		// notice whose watch was interrupted: an acknowledgement would delete an instance
		// whose Pods still run.
		return decision{step: expire, outcome: timedOut}
	case observed.foreign != "" && !observed.acknowledged && !overdue(notice, now):
		until := now.Add(controllers.ForeignRecheck)
		if !notice.Deadline.IsZero() {
			until = earliest(until, notice.Deadline)
		}
		return decision{step: reportForeign, until: until}
	case observed.foreign == "" && len(observed.nodes) == 1 && !observed.nodes[0].Spec.Unschedulable:
		// A Node is cordoned also if it registered after the acknowledgement or the deadline:
		// no Pod may start on a machine that is about to be deleted. The drain continues when
		// the cache shows the cordon, so that all Nodes of a burst are cordoned before the
		// Pods of the first are listed.
		return decision{step: cordon, until: now.Add(cordonTimeout)}
	case observed.acknowledged, overdue(notice, now):
		return decision{step: nothing}
	case observed.outdated:
		return decision{step: annotate, until: now.Add(cordonTimeout)}
	}
	next := planDrain(observed, now)
	if next.step == acknowledge && observed.hooks.first() != "" {
		next = decision{step: awaitHook, hooked: true}
	}
	if !notice.Deadline.IsZero() {
		next.until = earliest(next.until, notice.Deadline)
	}
	return next
}

// overdue reports whether the deadline of a notice is over: the shard deletes the
// instance, drained or not.
func overdue(notice *shard.DeletionNotice, now time.Time) bool {
	return !notice.Deadline.IsZero() && !now.Before(notice.Deadline)
}

// planDrain decides on the next step for an instance with a notice whose deadline
// is not over.
func planDrain(observed observation, now time.Time) decision {
	pods := observed.pods
	switch {
	case len(observed.nodes) > 1:
		return decision{step: reportAmbiguity}
	case len(observed.nodes) == 0 && providerid.Key(observed.notice.ProviderID) == "":
		// Any Node may be the Node of the instance.
		return decision{step: nothing}
	case len(observed.nodes) == 0 && observed.notFound:
		return decision{step: acknowledge, outcome: noNode}
	case len(observed.nodes) == 0 && observed.mismatch != nil && now.Before(observed.mismatch.listAgainAt):
		return decision{step: reportMismatch, until: observed.mismatch.listAgainAt}
	case len(observed.nodes) == 0:
		return decision{step: lookUpNode}
	case !pods.watched:
		return decision{step: watchPods}
	case !pods.synced:
		return decision{step: nothing}
	case !pods.classified && now.Before(pods.listAfter):
		return decision{step: nothing, until: pods.listAfter}
	case !pods.classified:
		return decision{step: classifyPods}
	case len(pods.remaining) > 0:
		next := planEvictions(pods, observed.hooks.preDrain != "", observed.notice.Deadline, now)
		next.until = earliest(earliest(earliest(next.until, pods.gracePeriodEnd), pods.stuckAt), pods.readAgainAt)
		return next
	case !pods.readAgainAt.IsZero():
		return decision{step: nothing, until: pods.readAgainAt}
	case pods.attached > 0 && now.Before(pods.emptySince.Add(volumeTimeout)):
		return decision{step: awaitVolumes, until: pods.emptySince.Add(volumeTimeout)}
	case pods.attached > 0:
		return decision{step: acknowledge, outcome: volumesAttached}
	default:
		return decision{step: acknowledge, outcome: drained}
	}
}

// planEvictions decides which of the remaining Pods are evicted now. Pods of the lowest order
// that remains are evicted, or waited for; no Pod is evicted if a hook delays the drain. When the
// time to the deadline is only enough to terminate all Pods, rules and hooks no longer count: a Pod
// that is evicted has its grace period, and a Pod that is left on the machine has none.
func planEvictions(pods podsObservation, hooked bool, deadline, now time.Time) decision {
	leaving := notDeleted(pods.remaining)
	next := decision{step: evict, margin: terminationMargin(leaving)}
	rulesEnd := time.Time{}
	if !deadline.IsZero() {
		rulesEnd = deadline.Add(-next.margin)
		if !now.Before(rulesEnd) {
			next.evict = leaving
			return next
		}
	}
	if hooked {
		next.hooked, next.until = true, rulesEnd
		return next
	}
	// Pods that are being deleted count: the next order begins when they have left.
	lowest := int32(math.MaxInt32)
	for _, pod := range pods.remaining {
		lowest = min(lowest, pods.rules[pod.UID].Order)
	}
	for _, pod := range leaving {
		switch rule := pods.rules[pod.UID]; {
		case rule.Order == lowest && rule.Behavior == drainrule.WaitCompleted:
			next.await = append(next.await, pod)
		case rule.Order == lowest:
			next.evict = append(next.evict, pod)
		}
	}
	if len(next.evict) < len(leaving) {
		next.until = rulesEnd
	}
	return next
}

// terminationMargin returns the time that all Pods need to terminate: the longest grace period,
// and some time for evictions that are rejected at first.
func terminationMargin(pods []*corev1.Pod) time.Duration {
	longest := time.Duration(0)
	for _, pod := range pods {
		longest = max(longest, gracePeriod(pod))
	}
	return longest + evictionMargin
}

// earliest returns the earlier of two times. Zero means that there is no such time.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
