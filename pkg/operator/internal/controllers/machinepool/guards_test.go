// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

// noon is the time of the tests of guards.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// guardedPool observes a pool with three running instances on each of shards a and b, and
// these guards. Their Nodes have been Ready for a minute.
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
	return &v1beta1.ScaleDownGuards{MaxInFlight: &value}
}

func pausedWhile(states ...v1beta1.PoolState) *v1beta1.ScaleDownGuards {
	return &v1beta1.ScaleDownGuards{PauseWhile: states}
}

func TestGuardedScaleDown(t *testing.T) {
	both := upTo("1")
	both.PauseWhile = []v1beta1.PoolState{v1beta1.PauseWhileDrainBlocked}
	stabilized := upTo("1")
	stabilized.StabilizationSeconds = ptr.To[int32](60)
	for name, test := range map[string]struct {
		guards   *v1beta1.ScaleDownGuards
		replicas int32
		change   func(*observation)
		sizes    []int32
		// want is the condition, "" for no condition.
		want string
		wait time.Duration
	}{
		"no guards":                  {nil, 2, nil, []int32{1, 1}, "", 0},
		"guards without a value":     {&v1beta1.ScaleDownGuards{}, 2, nil, []int32{1, 1}, "", 0},
		"a scale-up":                 {upTo("1"), 8, nil, []int32{4, 4}, "", 0},
		"as many as wanted":          {upTo("1"), 6, nil, []int32{3, 3}, "", 0},
		"one at a time":              {upTo("1"), 2, nil, []int32{3, 2}, "Removing: 3 more instances are to be removed, at most 1 at once", 0},
		"a third of six":             {upTo("34%"), 2, nil, []int32{2, 2}, "Removing: 2 more instances are to be removed, at most 2 at once", 0},
		"a percentage is at least 1": {upTo("1%"), 2, nil, []int32{3, 2}, "Removing: 3 more instances are to be removed, at most 1 at once", 0},
		"the last step":              {upTo("1"), 5, nil, []int32{3, 2}, "", 0},
		"an instance is still listed": {upTo("1"), 2, func(seen *observation) {
			seen.shards[1].group.Spec.Size = 2
		}, []int32{3, 2}, "Removing: 3 more instances are to be removed, at most 1 at once", 0},
		"an instance is replaced": {upTo("1"), 2, func(seen *observation) {
			seen.shards[0].draining = sets.New("a1")
		}, []int32{3, 3}, "Removing: 4 more instances are to be removed, at most 1 at once", 0},
		"a shard is not synced, so that the number is not known": {upTo("1"), 2, func(seen *observation) {
			seen.shards[0].synced, seen.shards[0].reported = false, nil
		}, []int32{3, 3}, "NotSynced: 4 more instances are to be removed: it is not known which instances these shards have: a", 0},
		"a shard is not configured": {upTo("1"), 2, func(seen *observation) {
			seen.shards[0].configured, seen.shards[0].synced, seen.shards[0].reported = false, false, nil
		}, []int32{3, 2}, "Removing: 3 more instances are to be removed, at most 1 at once", 0},
		"a server that does not list its instances": {upTo("1"), 2, func(seen *observation) {
			seen.shards[0].reported = &shard.Group{Key: "workers", Size: 3, ActualSize: 4}
		}, []int32{3, 3}, "Removing: 4 more instances are to be removed, at most 1 at once", 0},

		"a shard is unreachable": {pausedWhile(v1beta1.PauseWhileShardUnreachable), 2, func(seen *observation) {
			seen.shards[1].reachable = false
		}, []int32{3, 3}, "ShardUnreachable: 4 more instances are to be removed: these shards are not connected: b", 0},
		"all shards are connected": {pausedWhile(v1beta1.PauseWhileShardUnreachable), 2, nil, []int32{1, 1}, "", 0},
		"a drain is blocked": {both, 2, func(seen *observation) {
			seen.shards[0].group.Status.BlockedReplicas = ptr.To[int32](1)
		}, []int32{3, 3}, "DrainBlocked: 4 more instances are to be removed: 1 drains are blocked, for the reasons that the shard groups have", 0},
		"no drain is blocked": {both, 2, func(seen *observation) {
			seen.shards[0].group.Status.BlockedReplicas = ptr.To[int32](0)
		}, []int32{3, 2}, "Removing: 3 more instances are to be removed, at most 1 at once", 0},
		"a Node is not Ready": {pausedWhile(v1beta1.PauseWhileInstanceNotReady), 2, func(seen *observation) {
			everyNode(seen, nodeReadiness{ready: true, since: noon})
			seen.guarded.nodes["provider-b1"] = nodeReadiness{problem: `has Node "n", which is not Ready`}
		}, []int32{3, 3}, `InstanceNotReady: 4 more instances are to be removed: 1 of 6 remaining instances are not ready: instance b1 has Node "n", which is not Ready`, 0},
		"the Nodes are Ready": {pausedWhile(v1beta1.PauseWhileInstanceNotReady), 2, nil, []int32{1, 1}, "", 0},
		"an instance that is replaced need not be ready": {pausedWhile(v1beta1.PauseWhileInstanceNotReady), 2, func(seen *observation) {
			seen.shards[1].reported.Instances[1].State = shard.InstanceTerminating
			everyNode(seen, nodeReadiness{ready: true, since: noon})
			seen.guarded.nodes["provider-b1"] = nodeReadiness{problem: "is not Ready"}
		}, []int32{1, 1}, "", 0},
		"not Ready for long enough": {&v1beta1.ScaleDownGuards{MinReadySeconds: ptr.To[int32](90)}, 2, nil, []int32{3, 3},
			"MinReadySeconds: 4 more instances are to be removed: the Node of instance a0 has been Ready since 2026-01-01T11:59:00Z, and spec.scaleDown.minReadySeconds is 90", 30 * time.Second},
		"Ready for long enough": {&v1beta1.ScaleDownGuards{MinReadySeconds: ptr.To[int32](60)}, 2, nil, []int32{1, 1}, "", 0},
		"Ready in the future, by another clock": {&v1beta1.ScaleDownGuards{MinReadySeconds: ptr.To[int32](60)}, 2, func(seen *observation) {
			everyNode(seen, nodeReadiness{ready: true, since: noon.Add(time.Hour)})
		}, []int32{3, 3}, "MinReadySeconds: 4 more instances are to be removed: the Node of instance a0 has been Ready since 2026-01-01T13:00:00Z, and spec.scaleDown.minReadySeconds is 60", time.Minute},
		"a shard is not synced, so that the readiness is not known": {pausedWhile(v1beta1.PauseWhileInstanceNotReady), 2, func(seen *observation) {
			seen.shards[0].synced, seen.shards[0].reported = false, nil
		}, []int32{3, 3}, "NotSynced: 4 more instances are to be removed: it is not known which instances these shards have: a", 0},
		"no Node": {&v1beta1.ScaleDownGuards{MinReadySeconds: ptr.To[int32](60)}, 2, func(seen *observation) {
			everyNode(seen, nodeReadiness{problem: "has no Node"})
		}, []int32{3, 3}, `InstanceNotReady: 4 more instances are to be removed: 6 of 6 remaining instances are not ready: instance a0 has no Node`, 0},
		"an instance is pending, and is taken back": {pausedWhile(v1beta1.PauseWhileInstanceNotReady), 5, func(seen *observation) {
			seen.shards[1].reported.Instances[2].State = shard.InstancePending
		}, []int32{3, 2}, "", 0},

		"lowered just now": {&v1beta1.ScaleDownGuards{StabilizationSeconds: ptr.To[int32](60)}, 2, func(seen *observation) {
			seen.guarded.stable, seen.guarded.stableAt = math.MaxInt32, noon.Add(time.Minute)
		}, []int32{3, 3}, "Stabilizing: 4 more instances are to be removed: the replicas are to be lowered for 60 s before the next step, at 2026-01-01T12:01:00Z", time.Minute},
		"lowered again just now": {&v1beta1.ScaleDownGuards{StabilizationSeconds: ptr.To[int32](60)}, 2, func(seen *observation) {
			seen.guarded.stable, seen.guarded.stableAt = 4, noon.Add(time.Minute)
		}, []int32{2, 2}, "Stabilizing: 2 more instances are to be removed: the replicas are to be lowered for 60 s before the next step, at 2026-01-01T12:01:00Z", time.Minute},
		"lowered again just now, one at a time": {stabilized, 2, func(seen *observation) {
			seen.guarded.stable, seen.guarded.stableAt = 4, noon.Add(time.Minute)
		}, []int32{3, 2}, "Removing: 3 more instances are to be removed, at most 1 at once", time.Minute},
		"lowered long ago": {&v1beta1.ScaleDownGuards{StabilizationSeconds: ptr.To[int32](60)}, 2, nil, []int32{1, 1}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			for _, machines := range []bool{false, true} {
				seen := guardedPool(test.guards, test.replicas)
				if machines {
					seen.pool.Spec.MachineMode, seen.pool.Status.InfrastructureMachineKind = v1beta1.MachineModeAlways, v1beta1.MachineKind
				}
				if test.change != nil {
					test.change(&seen)
				}
				d := planOf(seen)
				assert.Equal(t, test.sizes, d.sizes, "with Machines: %t", machines)
				var got string
				if d.scalingDown != nil {
					got = fmt.Sprintf("%s: %s", d.scalingDown.reason, d.scalingDown.message)
					assert.Equal(t, test.wait, d.scalingDown.wait)
				}
				assert.Equal(t, test.want, got)
			}
		})
	}
}

// Guards do not block an instance that the autoscaler has drained, nor an instance whose
// Machine is being deleted, which the shard would replace.
func TestGuardsLetDeletionCandidatesPass(t *testing.T) {
	guards := upTo("1")
	guards.MinReadySeconds, guards.StabilizationSeconds = ptr.To[int32](3600), ptr.To[int32](3600)
	guards.PauseWhile = []v1beta1.PoolState{v1beta1.PauseWhileShardUnreachable, v1beta1.PauseWhileDrainBlocked, v1beta1.PauseWhileInstanceNotReady}
	for name, candidates := range map[string][]distribute.Candidate{
		"annotated":           {{ID: "b1", Shard: "b", Annotated: true, Annotation: "1"}},
		"being deleted":       {{ID: "b1", Shard: "b"}},
		"more than one":       {{ID: "b1", Shard: "b"}, {ID: "b2", Shard: "b", Annotated: true}},
		"annotated and being": {{ID: "b1", Shard: "b", Annotated: true}, {ID: "a2", Shard: "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			seen := guardedPool(guards, 2)
			seen.pool.Spec.MachineMode, seen.pool.Status.InfrastructureMachineKind = v1beta1.MachineModeAlways, v1beta1.MachineKind
			seen.shards[0].reachable = false
			seen.shards[0].group.Status.BlockedReplicas = ptr.To[int32](1)
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

// An uneven pool without Machines is divided evenly: shards grow at once, and shrink in
// steps.
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
		// replicas are the observed replicas, a number every ten seconds.
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

// The replicas of a deleted pool do not count for a new pool of its name.
func TestLoweringsOfAFormerPool(t *testing.T) {
	var seen scaleDowns
	pool, now := controllertest.Key("workers"), time.Unix(1000, 0)
	seen.observe(pool, "former", 3, now)
	later := now.Add(time.Hour)
	_, next := seen.observe(pool, "new", 3, later).stable(time.Minute, later)
	assert.Equal(t, later.Add(time.Minute), next)
}

// A pool with loans is scaled down in steps too, from the borrower. The loans are not
// returned meanwhile: the lender may still be without stock.
func TestGuardedScaleDownOfAPoolWithLoans(t *testing.T) {
	const replicas = 3
	seen := guardedPool(upTo("1"), replicas)
	seen.pool.Spec.Shortfall, seen.mayMove = &v1beta1.ShortfallSettings{Policy: v1beta1.ShortfallMove}, true
	for i, state := range []struct{ size, lent int32 }{{1, 2}, {5, -2}} {
		shardState := &seen.shards[i]
		shardState.group.Spec.Size = state.size
		shardState.group.Spec.Loan = newLoan(seen.pool, state.lent, 6)
		serve(shardState)
	}

	var steps [][]int32
	for range 4 {
		d := planOf(seen)
		require.Nil(t, d.blocked)
		steps = append(steps, d.sizes)
		if distribute.Total(d.sizes) > replicas {
			require.NotNil(t, d.scalingDown, "sizes %v", d.sizes)
		}
		for _, want := range d.apply {
			for i := range seen.shards {
				if shardState := &seen.shards[i]; shardState.id == string(want.spec.Shard) {
					shardState.group.Spec = want.spec
					serve(shardState)
				}
			}
		}
	}
	assert.Equal(t, [][]int32{{1, 4}, {1, 3}, {1, 2}, {1, 2}}, steps)
}

// serve lets the server of a shard run as many instances as the shard group wants.
func serve(state *shardState) {
	state.reported = listed()
	state.reported.Size = state.group.Spec.Size
	for n := range state.group.Spec.Size {
		id := fmt.Sprintf("%s%d", state.id, n)
		state.reported.Instances = append(state.reported.Instances,
			shard.Instance{ID: id, State: shard.InstanceRunning, ProviderID: "provider-" + id})
	}
	state.reported.ActualSize = state.group.Spec.Size
}

// newGuardedPool returns a harness of the pool "workers" without Machines, with guards and
// two instances on each of shards a and b, whose Nodes are Ready.
func newGuardedPool(t *testing.T, guards *v1beta1.ScaleDownGuards) *harness {
	t.Helper()
	pool := newPool("a", "b")
	pool.Spec.ScaleDown = guards
	groups, objects := map[string]*shard.Group{}, []runtime.Object{pool}
	for _, id := range []string{"a", "b"} {
		groups[id] = listed(id+"0", id+"1")
		for i := range groups[id].Instances {
			groups[id].Instances[i].ProviderID = "provider-" + groups[id].Instances[i].ID
		}
		objects = append(objects, ready(newShardGroup(pool, id, 2), "provider-"+id+"0", "provider-"+id+"1"))
	}
	h := newHarness(t, withGroups(groups), objects...)
	for _, id := range []string{"a0", "a1", "b0", "b1"} {
		h.Put(h.Informers.Nodes, readyNode(id, corev1.ConditionTrue, h.FakeClock.Now()))
	}
	h.scale(4)
	h.settle()
	return h
}

func readyNode(id string, status corev1.ConditionStatus, since time.Time) *corev1.Node {
	made := node(id, "provider-"+id)
	made.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(since)}}
	return made
}

// settle syncs until nothing is written, and drops the events. It returns the delay of the
// last sync.
func (h *harness) settle() time.Duration {
	h.T.Helper()
	for range 5 {
		writes, requeue, err := h.sync()
		require.NoError(h.T, err)
		h.Show()
		if len(writes) == 0 {
			return requeue
		}
	}
	h.T.Fatal("each sync writes something")
	return 0
}

// scalingDown returns status and reason of the condition ScalingDown, "" without it.
func (h *harness) scalingDown() string {
	return conditionOf(h.pool(), v1beta1.ConditionScalingDown)
}

// terminate removes instances from the reports of the servers.
func (h *harness) terminate(ids ...string) {
	for _, id := range []string{"a", "b"} {
		group := h.Fake.ByID[id].Groups["workers"]
		group.Instances = slices.DeleteFunc(slices.Clone(group.Instances), func(instance shard.Instance) bool { return slices.Contains(ids, instance.ID) })
		h.Fake.SetGroup(id, group)
	}
}

func TestScaleDownInSteps(t *testing.T) {
	h := newGuardedPool(t, upTo("1"))
	h.Events()
	h.scale(1)
	assert.Zero(t, h.settle(), "the shards enqueue the pool")
	h.expectSizes(map[string]int32{"a": 2, "b": 1})
	assert.Equal(t, "True Removing", h.scalingDown())
	assert.Equal(t, "True Ready", conditionOf(h.pool(), v1beta1.ConditionReady))
	h.terminate("b0")
	h.settle()
	h.expectSizes(map[string]int32{"a": 1, "b": 1})
	assert.Equal(t, "True Removing", h.scalingDown())
	h.terminate("a1")
	h.settle()
	h.expectSizes(map[string]int32{"a": 1, "b": 0})
	assert.Equal(t, "True Removing", h.scalingDown(), "the last instance is being removed")
	assert.Empty(t, slices.DeleteFunc(h.Events(), func(event string) bool { return strings.HasPrefix(event, "Normal Scaled") }))
}

// A blocked scale-down is one event, and continues when the state changes.
func TestBlockedScaleDown(t *testing.T) {
	guards := upTo("1")
	guards.PauseWhile = []v1beta1.PoolState{v1beta1.PauseWhileInstanceNotReady}
	h := newGuardedPool(t, guards)
	h.Put(h.Informers.Nodes, readyNode("a0", corev1.ConditionFalse, h.FakeClock.Now()))
	h.Events()
	h.scale(3)
	for range 3 {
		assert.Zero(t, h.settle(), "the Node enqueues the pool")
		h.Advance(time.Minute)
	}
	h.expectSizes(map[string]int32{"a": 2, "b": 2})
	assert.Equal(t, "True InstanceNotReady", h.scalingDown())
	h.ExpectEvents(`Warning ScaleDownBlocked 1 more instances are to be removed: 1 of 4 remaining instances are not ready: instance a0 has Node "a0", which is not Ready`)
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { controllertest.Paused(pool) })
	h.settle()
	assert.Equal(t, "True InstanceNotReady", h.scalingDown(), "a pause decides nothing")
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { pool.Annotations = nil })
	h.Put(h.Informers.Nodes, readyNode("a0", corev1.ConditionTrue, h.FakeClock.Now()))
	h.settle()
	h.expectSizes(map[string]int32{"a": 2, "b": 1})
	assert.Equal(t, "True Removing", h.scalingDown())
}

// If two Nodes have a provider id, the instance counts as not ready.
func TestAmbiguousNodesBlockAScaleDown(t *testing.T) {
	h := newGuardedPool(t, &v1beta1.ScaleDownGuards{MinReadySeconds: ptr.To[int32](1)})
	h.Advance(time.Hour)
	twin := readyNode("twin", corev1.ConditionTrue, h.FakeClock.Now().Add(-time.Hour))
	twin.Spec.ProviderID = "provider-a0"
	h.Put(h.Informers.Nodes, twin)
	h.scale(3)
	h.settle()
	h.expectSizes(map[string]int32{"a": 2, "b": 2})
	assert.Equal(t, "True InstanceNotReady", h.scalingDown())
}

// The period starts when this leader sees the lowered replicas, and ends with a sync. It
// starts again if the replicas are raised, and with the next leader.
func TestStabilizationOfAScaleDown(t *testing.T) {
	h := newGuardedPool(t, &v1beta1.ScaleDownGuards{StabilizationSeconds: ptr.To[int32](60)})
	h.Advance(time.Hour)
	h.scale(3)
	assert.Equal(t, time.Minute, h.settle())
	assert.Equal(t, "True Stabilizing", h.scalingDown())
	h.Advance(59 * time.Second)
	assert.Equal(t, time.Second, h.settle())
	h.expectSizes(map[string]int32{"a": 2, "b": 2})

	h.scale(4)
	assert.Zero(t, h.settle())
	assert.Equal(t, "False NotScalingDown", h.scalingDown())
	h.scale(3)
	assert.Equal(t, time.Minute, h.settle())

	h.Advance(59 * time.Second)
	next := newHarness(t, h.Fake, h.pool(), h.shardGroup("a"), h.shardGroup("b"))
	next.FakeClock.SetTime(h.FakeClock.Now())
	next.scale(3)
	assert.Equal(t, time.Minute, next.settle())

	h.Advance(time.Second)
	h.settle()
	h.expectSizes(map[string]int32{"a": 2, "b": 1})
	assert.Equal(t, "True Removing", h.scalingDown())
	assert.Empty(t, h.controller.scaleDowns.byPool)
}

// Changes that only guards need enqueue only pools with guards.
func TestChangesEnqueueGuardedPools(t *testing.T) {
	changes := map[string]func(*Controller){
		"a Node becomes Ready": func(c *Controller) {
			c.readinessChanged(readyNode("a0", corev1.ConditionFalse, noon), readyNode("a0", corev1.ConditionTrue, noon))
		},
		"a Node was not Ready for a moment": func(c *Controller) {
			c.readinessChanged(readyNode("a0", corev1.ConditionTrue, noon), readyNode("a0", corev1.ConditionTrue, noon.Add(1)))
		},
		"a list of instances": func(c *Controller) { c.instancesChanged("a", "workers") },
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			for _, guards := range []*v1beta1.ScaleDownGuards{nil, upTo("1")} {
				h := newGuardedPool(t, guards)
				enqueued := controllertest.Enqueued(t, &h.controller.queue, func() { change(h.controller) })
				if guards == nil {
					assert.Empty(t, enqueued)
				} else {
					assert.Equal(t, []string{"workers at 2s"}, enqueued)
				}
			}
		})
	}
	h := newGuardedPool(t, upTo("1"))
	assert.Empty(t, controllertest.Enqueued(t, &h.controller.queue, func() {
		h.controller.readinessChanged(readyNode("a0", corev1.ConditionTrue, noon), readyNode("a0", corev1.ConditionTrue, noon))
		h.controller.readinessChanged(readyNode("z9", corev1.ConditionFalse, noon), readyNode("z9", corev1.ConditionTrue, noon))
		h.controller.instancesChanged("a", "other")
	}), "a heartbeat, another Node and another group")
}

func conditionOf(pool *v1beta1.NstanceMachinePool, kind string) string {
	condition := meta.FindStatusCondition(pool.Status.Conditions, kind)
	if condition == nil {
		return ""
	}
	return string(condition.Status) + " " + condition.Reason
}
