// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/distribute"
	"nstance.dev/operator/pkg/operator/shard"
)

// noon is the time of the tests of guards.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// guardedPool is what a sync sees of a pool with three running instances on each of shards
// a and b, and these guards. Their Nodes have been Ready for a minute.
func guardedPool(guards *v1beta1.ScaleDownGuards, replicas int32) observation {
	pool := newPool("a", "b")
	pool.Spec.ScaleDown = guards
	seen := observed(pool, replicas, newShardGroup(pool, "a", 3), newShardGroup(pool, "b", 3))
	for i := range seen.shards {
		seen.shards[i].reachable = true
		seen.shards[i].reported = listed()
		seen.shards[i].reported.Size = 3
		for n := range 3 {
			id := fmt.Sprintf("%s%d", seen.shards[i].id, n)
			seen.shards[i].reported.Instances = append(seen.shards[i].reported.Instances,
				shard.Instance{ID: id, State: shard.InstanceRunning, ProviderID: "provider-" + id})
		}
	}
	seen.guarded = &guarded{now: noon, stable: replicas}
	everyNode(&seen, nodeReadiness{ready: true, since: noon.Add(-time.Minute)})
	return seen
}

// everyNode gives the Nodes of all instances the same readiness.
func everyNode(seen *observation, readiness nodeReadiness) {
	seen.guarded.nodes = map[string]nodeReadiness{}
	for _, state := range seen.shards {
		for _, id := range providerIDsOf(state.reported) {
			seen.guarded.nodes[id] = readiness
		}
	}
}

func upTo(n string) *v1beta1.ScaleDownGuards {
	value := intstr.Parse(n)
	return &v1beta1.ScaleDownGuards{MaxUnavailable: &value}
}

func pausedWhile(states ...v1beta1.ScaleDownPause) *v1beta1.ScaleDownGuards {
	return &v1beta1.ScaleDownGuards{PauseWhile: states}
}

func TestGuardedScaleDown(t *testing.T) {
	both := upTo("1")
	both.PauseWhile = []v1beta1.ScaleDownPause{v1beta1.PauseWhileDrainBlocked}
	stabilized := upTo("1")
	stabilized.StabilizationSeconds = 60
	for name, test := range map[string]struct {
		guards   *v1beta1.ScaleDownGuards
		replicas int32
		change   func(*observation)
		sizes    []int32
		// want is the condition, "" for none.
		want string
		wait time.Duration
	}{
		"no guards":                  {nil, 2, nil, []int32{1, 1}, "", 0},
		"guards without a value":     {&v1beta1.ScaleDownGuards{}, 2, nil, []int32{1, 1}, "", 0},
		"a scale-up":                 {upTo("1"), 8, nil, []int32{4, 4}, "", 0},
		"as many as wanted":          {upTo("1"), 6, nil, []int32{3, 3}, "", 0},
		"one at a time":              {upTo("1"), 2, nil, []int32{3, 2}, "True Removing: 3 more instances are to be removed, at most 1 at once", 0},
		"a third of six":             {upTo("34%"), 2, nil, []int32{2, 2}, "True Removing: 2 more instances are to be removed, at most 2 at once", 0},
		"a percentage is at least 1": {upTo("1%"), 2, nil, []int32{3, 2}, "True Removing: 3 more instances are to be removed, at most 1 at once", 0},
		"the last step":              {upTo("1"), 5, nil, []int32{3, 2}, "", 0},
		"an instance is still listed": {upTo("1"), 2, func(seen *observation) {
			seen.shards[1].group.Spec.Size = 2
		}, []int32{3, 2}, "True Removing: 3 more instances are to be removed, at most 1 at once", 0},
		"an instance is replaced": {upTo("1"), 2, func(seen *observation) {
			seen.shards[0].draining = sets.New("a1")
		}, []int32{3, 3}, "True Removing: 4 more instances are to be removed, at most 1 at once", 0},
		"a shard is not synced, so that the number is not known": {upTo("1"), 2, func(seen *observation) {
			seen.shards[0].synced, seen.shards[0].reported = false, nil
		}, []int32{3, 3}, "False NotSynced: 4 more instances are to be removed: it is not known which instances these shards have: a", 0},
		"a shard is not configured": {upTo("1"), 2, func(seen *observation) {
			seen.shards[0].configured, seen.shards[0].synced, seen.shards[0].reported = false, false, nil
		}, []int32{3, 2}, "True Removing: 3 more instances are to be removed, at most 1 at once", 0},
		"a server that does not list its instances": {upTo("1"), 2, func(seen *observation) {
			seen.shards[0].reported = &shard.Group{Key: "workers", Size: 3, ActualSize: 4}
		}, []int32{3, 3}, "True Removing: 4 more instances are to be removed, at most 1 at once", 0},

		"a shard is unreachable": {pausedWhile(v1beta1.PauseWhileShardUnreachable), 2, func(seen *observation) {
			seen.shards[1].reachable = false
		}, []int32{3, 3}, "False ShardUnreachable: 4 more instances are to be removed: these shards are not connected: b", 0},
		"all shards are connected": {pausedWhile(v1beta1.PauseWhileShardUnreachable), 2, nil, []int32{1, 1}, "", 0},
		"a drain is blocked": {both, 2, func(seen *observation) {
			seen.shards[0].group.Status.DrainsBlocked = ptr.To[int32](1)
		}, []int32{3, 3}, "False DrainBlocked: 4 more instances are to be removed: 1 drains are blocked, for the reasons that the shard groups have", 0},
		"no drain is blocked": {both, 2, func(seen *observation) {
			seen.shards[0].group.Status.DrainsBlocked = ptr.To[int32](0)
		}, []int32{3, 2}, "True Removing: 3 more instances are to be removed, at most 1 at once", 0},
		"a Node is not Ready": {pausedWhile(v1beta1.PauseWhileInstanceNotReady), 2, func(seen *observation) {
			everyNode(seen, nodeReadiness{ready: true, since: noon})
			seen.guarded.nodes["provider-b1"] = nodeReadiness{problem: `has Node "n", which is not Ready`}
		}, []int32{3, 3}, `False InstanceNotReady: 4 more instances are to be removed: 1 of 6 remaining instances are not ready: instance b1 has Node "n", which is not Ready`, 0},
		"the Nodes are Ready": {pausedWhile(v1beta1.PauseWhileInstanceNotReady), 2, nil, []int32{1, 1}, "", 0},
		"an instance that is replaced need not be ready": {pausedWhile(v1beta1.PauseWhileInstanceNotReady), 2, func(seen *observation) {
			seen.shards[1].reported.Instances[1].State = shard.InstanceTerminating
			everyNode(seen, nodeReadiness{ready: true, since: noon})
			seen.guarded.nodes["provider-b1"] = nodeReadiness{problem: "is not Ready"}
		}, []int32{1, 1}, "", 0},
		"not Ready for long enough": {&v1beta1.ScaleDownGuards{MinReadySeconds: 90}, 2, nil, []int32{3, 3},
			"False MinReadySeconds: 4 more instances are to be removed: the Node of instance a0 has been Ready since 2026-01-01T11:59:00Z, and spec.scaleDown.minReadySeconds is 90", 30 * time.Second},
		"Ready for long enough": {&v1beta1.ScaleDownGuards{MinReadySeconds: 60}, 2, nil, []int32{1, 1}, "", 0},
		"Ready in the future, by another clock": {&v1beta1.ScaleDownGuards{MinReadySeconds: 60}, 2, func(seen *observation) {
			everyNode(seen, nodeReadiness{ready: true, since: noon.Add(time.Hour)})
		}, []int32{3, 3}, "False MinReadySeconds: 4 more instances are to be removed: the Node of instance a0 has been Ready since 2026-01-01T13:00:00Z, and spec.scaleDown.minReadySeconds is 60", time.Minute},
		"no Node": {&v1beta1.ScaleDownGuards{MinReadySeconds: 60}, 2, func(seen *observation) {
			everyNode(seen, nodeReadiness{problem: "has no Node"})
		}, []int32{3, 3}, `False InstanceNotReady: 4 more instances are to be removed: 6 of 6 remaining instances are not ready: instance a0 has no Node`, 0},
		"an instance is pending, and is taken back": {pausedWhile(v1beta1.PauseWhileInstanceNotReady), 5, func(seen *observation) {
			seen.shards[1].reported.Instances[2].State = shard.InstancePending
		}, []int32{3, 2}, "", 0},

		"lowered just now": {&v1beta1.ScaleDownGuards{StabilizationSeconds: 60}, 2, func(seen *observation) {
			seen.guarded.stable, seen.guarded.stableAt = math.MaxInt32, noon.Add(time.Minute)
		}, []int32{3, 3}, "False Stabilizing: 4 more instances are to be removed: the replicas are to be lowered for 60 s before the next step, at 2026-01-01T12:01:00Z", time.Minute},
		"lowered again just now": {&v1beta1.ScaleDownGuards{StabilizationSeconds: 60}, 2, func(seen *observation) {
			seen.guarded.stable, seen.guarded.stableAt = 4, noon.Add(time.Minute)
		}, []int32{2, 2}, "False Stabilizing: 2 more instances are to be removed: the replicas are to be lowered for 60 s before the next step, at 2026-01-01T12:01:00Z", time.Minute},
		"lowered again just now, one at a time": {stabilized, 2, func(seen *observation) {
			seen.guarded.stable, seen.guarded.stableAt = 4, noon.Add(time.Minute)
		}, []int32{3, 2}, "True Removing: 3 more instances are to be removed, at most 1 at once", time.Minute},
		"lowered long ago": {&v1beta1.ScaleDownGuards{StabilizationSeconds: 60}, 2, nil, []int32{1, 1}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			for _, machines := range []bool{false, true} {
				seen := guardedPool(test.guards, test.replicas)
				if machines {
					seen.pool.Spec.Machines, seen.pool.Status.InfrastructureMachineKind = v1beta1.MachinesAlways, v1beta1.MachineKind
				}
				if test.change != nil {
					test.change(&seen)
				}
				d := planOf(seen)
				assert.Equal(t, test.sizes, d.sizes, "with Machines: %t", machines)
				var got string
				if d.scalingDown != nil {
					got = fmt.Sprintf("%s %s: %s", d.scalingDown.status, d.scalingDown.reason, d.scalingDown.message)
					assert.Equal(t, test.wait, d.scalingDown.wait)
				}
				assert.Equal(t, test.want, got)
			}
		})
	}
}

// Whatever blocks others, the instance is removed that the autoscaler has drained, and the
// one whose Machine is being deleted, which the shard would replace.
func TestGuardsLetDeletionCandidatesPass(t *testing.T) {
	guards := upTo("1")
	guards.MinReadySeconds, guards.StabilizationSeconds = 3600, 3600
	guards.PauseWhile = []v1beta1.ScaleDownPause{v1beta1.PauseWhileShardUnreachable, v1beta1.PauseWhileDrainBlocked, v1beta1.PauseWhileInstanceNotReady}
	for name, candidates := range map[string][]distribute.Candidate{
		"annotated":           {{ID: "b1", Shard: "b", Annotated: true, Annotation: "1"}},
		"being deleted":       {{ID: "b1", Shard: "b"}},
		"more than one":       {{ID: "b1", Shard: "b"}, {ID: "b2", Shard: "b", Annotated: true}},
		"annotated and being": {{ID: "b1", Shard: "b", Annotated: true}, {ID: "a2", Shard: "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			seen := guardedPool(guards, 2)
			seen.pool.Spec.Machines, seen.pool.Status.InfrastructureMachineKind = v1beta1.MachinesAlways, v1beta1.MachineKind
			seen.shards[0].reachable = false
			seen.shards[0].group.Status.DrainsBlocked = ptr.To[int32](1)
			seen.guarded.stable, seen.guarded.stableAt = math.MaxInt32, noon.Add(time.Hour)
			seen.candidates = candidates
			d := planOf(seen)
			assert.Equal(t, int32(6-len(candidates)), distribute.Total(d.sizes))
			var selected, want []string
			for _, group := range d.apply {
				selected = append(selected, group.spec.RemoveFirst...)
			}
			for _, candidate := range candidates {
				want = append(want, candidate.ID)
			}
			slices.Sort(selected)
			slices.Sort(want)
			assert.Equal(t, want, selected)
		})
	}
}

// An uneven pool without Machines is divided evenly: what grows does so at once, and the
// rest shrinks in steps.
func TestGuardsDoNotDelayGrowth(t *testing.T) {
	seen := guardedPool(upTo("1"), 6)
	seen.shards[0].group.Spec.Size, seen.shards[1].group.Spec.Size = 6, 1
	for n := range 3 {
		seen.shards[0].reported.Instances = append(seen.shards[0].reported.Instances, shard.Instance{ID: fmt.Sprintf("a%d", n+3), State: shard.InstanceRunning})
	}
	seen.shards[1].reported.Instances = seen.shards[1].reported.Instances[:1]
	assert.Equal(t, []int32{5, 3}, planOf(seen).sizes)
}

func TestLowerings(t *testing.T) {
	const period = time.Minute
	at := func(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }
	for name, test := range map[string]struct {
		// replicas are what was seen, one number every ten seconds.
		replicas []int32
		now      int
		stable   int32
		next     int
	}{
		"just lowered":                      {[]int32{5}, 0, math.MaxInt32, 60},
		"not long enough":                   {[]int32{5}, 59, math.MaxInt32, 60},
		"long enough":                       {[]int32{5}, 60, 5, -1},
		"lowered twice":                     {[]int32{5, 3}, 60, 5, 70},
		"lowered twice, both long enough":   {[]int32{5, 3}, 70, 3, -1},
		"raised and lowered again":          {[]int32{3, 5, 3}, 60, 5, 80},
		"raised between, and lowered again": {[]int32{5, 3, 4, 3}, 70, 4, 90},
		"the same again":                    {[]int32{5, 5, 5}, 60, 5, -1},
	} {
		t.Run(name, func(t *testing.T) {
			var seen lowerings
			for i, replicas := range test.replicas {
				seen = seen.observe(replicas, at(10*i))
			}
			stable, next := seen.stable(period, at(test.now))
			assert.Equal(t, test.stable, stable)
			if test.next < 0 {
				assert.True(t, next.IsZero())
			} else {
				assert.Equal(t, at(test.next), next)
			}
		})
	}
}
