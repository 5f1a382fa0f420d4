// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/base/poolplan"
)

// allowance is the answer of the guards of a pool: how much a scale-down may remove now.
type allowance struct {
	distribute.Limits
	// atOnce is how many instances may be removed at once.
	atOnce int32
	// blocked is the guard that blocks the next step, nil if no guard does.
	blocked *problem
	// wait is the time until the guard may allow the step, 0 if that depends on a change.
	wait time.Duration
}

// scalingDown is the state of a guarded scale-down that is not complete: the guard that
// blocks the next step, or ReasonRemoving.
type scalingDown struct {
	problem
	// wait is the time until a guard may allow the next step, 0 if that depends on a
	// change.
	wait time.Duration
}

// checkGuards asks the guards of a pool how much a scale-down from the current size to
// replicas may remove now. It returns nil if the pool has no guards.
func checkGuards(observed observation, current, replicas int32) *allowance {
	guards := observed.pool.Spec.ScaleDown
	if guards == nil || observed.guarded == nil {
		return nil
	}
	floor := max(replicas, min(observed.guarded.stable, current))
	atOnce, removed, known := removals(guards, current, observed.distributable)
	allowed := &allowance{Limits: distribute.Limits{Floor: floor, Removable: max(atOnce-removed, 0)}, atOnce: atOnce}
	allowed.blocked, allowed.wait = blockedByGuard(observed, known)
	switch {
	case allowed.blocked != nil:
		allowed.Removable = 0
	case floor > replicas:
		allowed.blocked, allowed.wait = stabilizing(guards, observed.guarded)
	}
	return allowed
}

// limits returns nil if the pool has no guards.
func (a *allowance) limits() *distribute.Limits {
	if a == nil {
		return nil
	}
	return &a.Limits
}

// progress returns the state of the scale-down after a division with the limits, nil if it
// is complete or the pool has no guards.
func (a *allowance) progress(division distribute.Division) *scalingDown {
	if a == nil || division.Left == 0 {
		return nil
	}
	removing := &scalingDown{wait: a.wait, problem: problem{v1beta1.ReasonRemoving, fmt.Sprintf(
		"%d more instances are to be removed, at most %d at once", division.Left, a.atOnce)}}
	switch {
	case a.blocked == nil:
		return removing
	case a.blocked.reason == v1beta1.ReasonStabilizing && distribute.Total(division.Sizes) > a.Floor:
		// The guard blocks only the steps below the floor.
		return removing
	default:
		return &scalingDown{wait: a.wait, problem: problem{a.blocked.reason, fmt.Sprintf(
			"%d more instances are to be removed: %s", division.Left, a.blocked.message)}}
	}
}

// delay returns the time until a guard may allow the next step, 0 for never.
func (s *scalingDown) delay() time.Duration {
	if s == nil {
		return 0
	}
	return s.wait
}

// removals returns how many instances of the pool may be removed at once, and how many are
// being removed. That is not known before every shard is synced, and not necessary without
// a limit.
func removals(guards *v1beta1.ScaleDownGuards, current int32, shards []distribute.Shard) (atOnce, removed int32, known bool) {
	if guards.MaxInFlight == nil {
		return poolplan.AtOnce(guards, current), 0, true
	}
	known = true
	for i := range shards {
		n, ok := shards[i].BeingRemoved()
		removed += n
		known = known && ok
	}
	return poolplan.AtOnce(guards, current+removed), removed, known
}

// blockedByGuard returns the first guard that allows no step, nil if each allows it. known
// reports whether it is known how many instances are being removed.
func blockedByGuard(observed observation, known bool) (blocked *problem, wait time.Duration) {
	guards := observed.pool.Spec.ScaleDown
	away, unknown, drains := unreachable(observed.shards), unsynced(observed.shards), blockedReplicas(observed)
	switch {
	case slices.Contains(guards.PauseWhile, v1beta1.PauseWhileShardUnreachable) && len(away) > 0:
		return problemf(v1beta1.ReasonShardUnreachable, "these shards are not connected: %s", strings.Join(away, ", ")), 0
	case slices.Contains(guards.PauseWhile, v1beta1.PauseWhileDrainBlocked) && drains > 0:
		return problemf(v1beta1.ReasonDrainBlocked, "%d drains are blocked, for the reasons that the shard groups have", drains), 0
	case len(unknown) > 0 && (!known || needsReadiness(guards)):
		return problemf(v1beta1.ReasonNotSynced, "it is not known which instances these shards have: %s", strings.Join(unknown, ", ")), 0
	case needsReadiness(guards):
		return instancesNotReady(observed)
	}
	return nil, 0
}

// needsReadiness reports whether guards depend on the Nodes of the remaining instances.
func needsReadiness(guards *v1beta1.ScaleDownGuards) bool {
	return ptr.Deref(guards.MinReadySeconds, 0) > 0 || slices.Contains(guards.PauseWhile, v1beta1.PauseWhileInstanceNotReady)
}

// stabilizing blocks the steps below the floor until the replicas were lowered for long
// enough.
func stabilizing(guards *v1beta1.ScaleDownGuards, guarded *guarded) (blocked *problem, wait time.Duration) {
	return problemf(v1beta1.ReasonStabilizing, "the replicas are to be lowered for %d s before the next step, at %s",
		ptr.Deref(guards.StabilizationSeconds, 0), guarded.stableAt.UTC().Format(time.RFC3339)), guarded.stableAt.Sub(guarded.now)
}

// unreachable returns the shards that are not connected.
func unreachable(shards []shardState) []string {
	return idsOf(shards, func(s shardState) bool { return !s.reachable || !s.configured })
}

// unsynced returns the configured shards whose instances are not known.
func unsynced(shards []shardState) []string {
	return idsOf(shards, func(s shardState) bool { return s.configured && !s.synced })
}

func idsOf(shards []shardState, wanted func(shardState) bool) (ids []string) {
	for _, shard := range shards {
		if wanted(shard) {
			ids = append(ids, shard.id)
		}
	}
	return ids
}

func blockedReplicas(observed observation) (blocked int32) {
	for _, group := range observed.shardGroups {
		blocked += ptr.Deref(group.Status.BlockedReplicas, 0)
	}
	return blocked
}

// instancesNotReady returns which remaining instances are not ready, or not for long enough,
// nil if all are. Candidates and pending instances that the scale-down removes do not remain.
func instancesNotReady(observed observation) (blocked *problem, wait time.Duration) {
	seconds := ptr.Deref(observed.pool.Spec.ScaleDown.MinReadySeconds, 0)
	minReady := time.Duration(seconds) * time.Second
	var remaining, bad int
	var first, latest string
	for i := range observed.shards {
		for _, instance := range remainingOn(&observed.shards[i], &observed.distributable[i], observed.candidates) {
			remaining++
			node := observed.guarded.nodes[instance.providerID]
			if instance.pending {
				node = nodeReadiness{problem: "is pending"}
			}
			left := min(minReady-observed.guarded.now.Sub(node.since), minReady)
			switch {
			case !node.ready:
				bad++
				if first == "" {
					first = fmt.Sprintf("instance %s %s", instance.name, node.problem)
				}
			case left > wait:
				wait = left
				latest = fmt.Sprintf("the Node of instance %s has been Ready since %s", instance.name, node.since.UTC().Format(time.RFC3339))
			}
		}
	}
	switch {
	case bad > 0:
		return problemf(v1beta1.ReasonInstanceNotReady, "%d of %d remaining instances are not ready: %s", bad, remaining, first), 0
	case wait > 0:
		return problemf(v1beta1.ReasonMinReady, "%s, and spec.scaleDown.minReadySeconds is %d", latest, seconds), wait
	}
	return nil, 0
}

// remainingInstance is an instance that a scale-down does not remove yet.
type remainingInstance struct {
	// name is its id, or its provider id if the server does not list instances.
	name, providerID string
	pending          bool
}

// remainingOn returns the remaining instances on a shard, nil if the shard is not configured
// and they are not known.
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

// lowering is a number of replicas, and the time since which the replicas of a pool have
// been at or below it.
type lowering struct {
	replicas int32
	since    time.Time
}

// lowerings are the lowerings of a pool, from the largest number to the smallest.
type lowerings []lowering

// observe adds the present replicas. Lowerings below them are removed: the replicas were
// raised.
func (l lowerings) observe(replicas int32, now time.Time) lowerings {
	at := 0
	for at < len(l) && l[at].replicas > replicas {
		at++
	}
	since := now
	if at < len(l) {
		since = l[at].since
	}
	return append(l[:at:at], lowering{replicas, since})
}

// stable returns the number at or below which the replicas have been for period,
// math.MaxInt32 before that, and when the number becomes smaller, the zero time for never.
func (l lowerings) stable(period time.Duration, now time.Time) (replicas int32, next time.Time) {
	replicas = math.MaxInt32
	for _, lowering := range l {
		if now.Sub(lowering.since) < period {
			return replicas, lowering.since.Add(period)
		}
		replicas = lowering.replicas
	}
	return replicas, time.Time{}
}

// scaleDowns are the guarded scale-downs that this leader has seen. Another leader starts
// without them. The zero value is empty.
type scaleDowns struct {
	mu     sync.Mutex
	byPool map[cache.ObjectName]poolLowerings
}

type poolLowerings struct {
	uid types.UID
	lowerings
}

// observe records the replicas of a pool that has more instances, and returns its
// lowerings.
func (s *scaleDowns) observe(pool cache.ObjectName, uid types.UID, replicas int32, now time.Time) lowerings {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byPool == nil {
		s.byPool = make(map[cache.ObjectName]poolLowerings)
	}
	before := s.byPool[pool]
	if before.uid != uid {
		before = poolLowerings{uid: uid}
	}
	before.lowerings = before.observe(replicas, now)
	s.byPool[pool] = before
	return before.lowerings
}

// drop removes the scale-down of a pool, which is complete or no longer guarded.
func (s *scaleDowns) drop(pool cache.ObjectName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byPool, pool)
}

// minReplicas returns the sum of the sizes that the shards keep at least, nil if it is 0.
func minReplicas(observed observation) *int32 {
	var least int32
	for i := range observed.shards {
		least += observed.shards[i].minSize()
	}
	if least == 0 {
		return nil
	}
	return &least
}
