// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/distribute"
)

// guarded is what a sync has read for the guards of a pool with surplus instances.
type guarded struct {
	now time.Time
	// stable is the number at or below which the replicas have been for long enough, and
	// stableAt when that is true of a smaller one, zero for never.
	stable   int32
	stableAt time.Time
	// draining reports whether an instance on a shard is being drained or was deleted.
	draining func(shard, id string) bool
	// readySince returns since when the Node with a provider id has been Ready, or why it
	// is not Ready.
	readySince func(providerID string) (since time.Time, notReady string)
}

// scalingDown is the state of a guarded scale-down that is not complete.
type scalingDown struct {
	// status is False while a guard blocks the next step.
	status metav1.ConditionStatus
	problem
	// wait is the time until a guard may allow the next step, 0 if that depends on a
	// change.
	wait time.Duration
}

// guardedSpread is divide, except that a scale-down is done in steps if the pool has
// guards. The scale-down is nil if it is complete or there is none.
func guardedSpread(observed observation, replicas int32, keepsMachines bool) (spreading, *lending, *scalingDown) {
	divided, loans := divide(observed, replicas, keepsMachines)
	guards := observed.pool.Spec.ScaleDown
	if guards == nil || observed.guarded == nil || !shrinks(observed.shards, divided.sizes) || loans != nil && loans.moved {
		return divided, loans, nil
	}
	shards := guardedShards(observed)
	floor := max(replicas, min(observed.guarded.stable, distribute.Total(distribute.Sizes(shards))))
	limit, removed, known := removals(guards, shards)
	removable, blocked := max(limit-removed, 0), blockedByGuard(observed, shards, floor, known)
	if blocked != nil && blocked.reason != v1beta1.ReasonStabilizing {
		removable = 0
	}
	if hasMachines(observed) {
		divided, loans = divide(observed, distribute.Step(shards, replicas, floor, observed.candidates, removable), keepsMachines)
	} else {
		divided.sizes = distribute.StepSizes(shards, divided.sizes, floor, removable)
		for i := range shards {
			divided.removeFirst[i] = shards[i].NextRemoveFirst(divided.sizes[i], nil)
		}
	}
	left := distribute.Surplus(divided.sizes, replicas)
	switch {
	case left == 0:
		return divided, loans, nil
	case blocked == nil, blocked.reason == v1beta1.ReasonStabilizing && distribute.Total(divided.sizes) > floor:
		return divided, loans, &scalingDown{status: metav1.ConditionTrue, wait: waitOf(blocked), problem: problem{v1beta1.ReasonRemoving, fmt.Sprintf(
			"%d more instances are to be removed, at most %d at once", left, limit)}}
	}
	blocked.message = fmt.Sprintf("%d more instances are to be removed: %s", left, blocked.message)
	return divided, loans, blocked
}

func waitOf(blocked *scalingDown) time.Duration {
	if blocked == nil {
		return 0
	}
	return blocked.wait
}

// shrinks reports whether a shard gets smaller.
func shrinks(shards []shardState, sizes []int32) bool {
	for i, current := range currentSizes(shards) {
		if sizes[i] < current {
			return true
		}
	}
	return false
}

// guardedShards returns the shards as package distribute takes them, with the instances
// that are being drained.
func guardedShards(observed observation) []distribute.Shard {
	shards := make([]distribute.Shard, len(observed.shards))
	for i := range observed.shards {
		state := &observed.shards[i]
		shards[i] = state.distributeShard()
		if shards[i].Reported == nil {
			continue
		}
		shards[i].Reported.Running = state.reported.ActualSize
		for n := range shards[i].Reported.Instances {
			instance := &shards[i].Reported.Instances[n]
			instance.Draining = observed.guarded.draining(state.id, instance.ID)
		}
	}
	return shards
}

// removals returns how many instances of the pool may be removed at once, and how many are.
// It is not known before every shard is synced, and not necessary without a limit.
func removals(guards *v1beta1.ScaleDownGuards, shards []distribute.Shard) (limit, removed int32, known bool) {
	if guards.MaxUnavailable == nil {
		return math.MaxInt32, 0, true
	}
	known = true
	for i := range shards {
		n, ok := shards[i].BeingRemoved()
		removed += n
		known = known && ok
	}
	instances := int(distribute.Total(distribute.Sizes(shards)) + removed)
	scaled, err := intstr.GetScaledValueFromIntOrPercent(guards.MaxUnavailable, instances, false)
	if err != nil {
		// The CRD has a rule against it.
		scaled = 1
	}
	return int32(max(scaled, 1)), removed, known
}

// blockedByGuard returns the guard that blocks the next step, nil for none. known reports
// whether it is known how many instances are being removed.
func blockedByGuard(observed observation, shards []distribute.Shard, floor int32, known bool) *scalingDown {
	guards := observed.pool.Spec.ScaleDown
	if slices.Contains(guards.PauseWhile, v1beta1.PauseWhileShardUnreachable) {
		if ids := unreachable(observed.shards); len(ids) > 0 {
			return blockedBecause(v1beta1.ReasonShardUnreachable, "these shards are not connected: %s", strings.Join(ids, ", "))
		}
	}
	if slices.Contains(guards.PauseWhile, v1beta1.PauseWhileDrainBlocked) {
		if n := drainsBlocked(observed); n > 0 {
			return blockedBecause(v1beta1.ReasonDrainBlocked, "%d drains are blocked, for the reasons that the shard groups have", n)
		}
	}
	ready := guards.MinReadySeconds > 0 || slices.Contains(guards.PauseWhile, v1beta1.PauseWhileInstanceNotReady)
	if ids := unsynced(observed.shards); len(ids) > 0 && (!known || ready) {
		return blockedBecause(v1beta1.ReasonNotSynced, "it is not known which instances these shards have: %s", strings.Join(ids, ", "))
	}
	if ready {
		if blocked := instancesNotReady(observed, shards); blocked != nil {
			return blocked
		}
	}
	if replicas := *observed.machinePools[0].Spec.Replicas; floor > replicas {
		blocked := blockedBecause(v1beta1.ReasonStabilizing, "the replicas are to be lowered for %d s before the next step, at %s",
			guards.StabilizationSeconds, observed.guarded.stableAt.UTC().Format(time.RFC3339))
		blocked.wait = observed.guarded.stableAt.Sub(observed.guarded.now)
		return blocked
	}
	return nil
}

func blockedBecause(reason, format string, args ...any) *scalingDown {
	return &scalingDown{status: metav1.ConditionFalse, problem: problem{reason, fmt.Sprintf(format, args...)}}
}

// unreachable returns the shards that are not connected.
func unreachable(shards []shardState) (ids []string) {
	for _, shard := range shards {
		if !shard.reachable || !shard.configured {
			ids = append(ids, shard.id)
		}
	}
	return ids
}

// unsynced returns the configured shards whose instances are not known.
func unsynced(shards []shardState) (ids []string) {
	for _, shard := range shards {
		if shard.configured && !shard.synced {
			ids = append(ids, shard.id)
		}
	}
	return ids
}

func drainsBlocked(observed observation) (blocked int32) {
	for _, group := range observed.shardGroups {
		blocked += ptr.Deref(group.Status.DrainsBlocked, 0)
	}
	return blocked
}

// instancesNotReady returns which remaining instances are not ready, or not for long enough, nil if
// all are. Candidates and pending instances that the scale-down removes do not remain.
func instancesNotReady(observed observation, shards []distribute.Shard) *scalingDown {
	minReady := time.Duration(observed.pool.Spec.ScaleDown.MinReadySeconds) * time.Second
	var remaining, bad int
	var first, latest string
	var wait time.Duration
	for i := range shards {
		for _, instance := range remainingOn(&observed.shards[i], &shards[i], observed.candidates) {
			remaining++
			since, problem := time.Time{}, "is pending"
			if !instance.pending {
				since, problem = observed.guarded.readySince(instance.providerID)
			}
			left := min(minReady-observed.guarded.now.Sub(since), minReady)
			switch {
			case problem != "":
				if bad++; first == "" {
					first = fmt.Sprintf("instance %s %s", instance.name, problem)
				}
			case left > wait:
				wait = left
				latest = fmt.Sprintf("the Node of instance %s has been Ready since %s", instance.name, since.UTC().Format(time.RFC3339))
			}
		}
	}
	switch {
	case bad > 0:
		return blockedBecause(v1beta1.ReasonInstanceNotReady, "%d of %d remaining instances are not ready: %s", bad, remaining, first)
	case wait > 0:
		blocked := blockedBecause(v1beta1.ReasonMinReady, "%s, and spec.scaleDown.minReadySeconds is %d", latest, observed.pool.Spec.ScaleDown.MinReadySeconds)
		blocked.wait = wait
		return blocked
	}
	return nil
}

// remainingInstance is an instance that a scale-down does not remove yet.
type remainingInstance struct {
	// name is its id, or its provider id if the server does not list instances.
	name, providerID string
	pending          bool
}

// remainingOn returns the instances on a shard that remain. Those of a shard that is not
// configured are not known.
func remainingOn(state *shardState, shard *distribute.Shard, candidates []distribute.Candidate) []remainingInstance {
	if !state.configured || state.reported == nil {
		return nil
	}
	var remaining []remainingInstance
	if !state.reported.ListsInstances {
		for _, id := range state.reported.ProviderIDs {
			remaining = append(remaining, remainingInstance{name: id, providerID: id})
		}
		return remaining
	}
	notRunning := shard.NotRunning(candidates)
	for n, instance := range state.reported.Instances {
		listed := shard.Reported.Instances[n]
		candidate := slices.ContainsFunc(candidates, func(c distribute.Candidate) bool { return c.ID == instance.ID && c.Shard == state.id })
		if listed.Draining || listed.Terminating || candidate || shard.Selected(instance.ID) || slices.Contains(notRunning, instance.ID) {
			continue
		}
		remaining = append(remaining, remainingInstance{instance.ID, instance.ProviderID, listed.Pending})
	}
	return remaining
}
