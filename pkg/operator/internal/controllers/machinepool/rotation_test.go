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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

// rotatingHarness is a harness of the pool "workers" with a policy and two instances on each of
// shards a and b, whose Nodes are Ready.
type rotatingHarness struct {
	*harness
	// target is the target that the servers report.
	target string
}

func newRotatingPool(t *testing.T, policy *v1beta1.RotationPolicy) *rotatingHarness {
	t.Helper()
	pool := newPool("a", "b")
	pool.Spec.Rotation = policy
	groups, objects := map[string]*shard.Group{}, []runtime.Object{pool}
	for _, id := range []string{"a", "b"} {
		groups[id] = listed()
		groups[id].Size, groups[id].ActualSize = 2, 2
		objects = append(objects, ready(newShardGroup(pool, id, 2)))
	}
	h := &rotatingHarness{newHarness(t, withGroups(groups), objects...), "one"}
	h.controller.nodesSynced = func() bool { return true }
	for _, id := range []string{"a", "b"} {
		h.serve(id, id+"0", id+"1")
	}
	h.scale(4)
	h.settle()
	h.serveGrants()
	h.settle()
	return h
}

// serve lets the server of a shard report these instances, and the progress of its rotation. An
// instance may have a suffix: outdated, pending or terminating. An instance that runs has had a
// Ready Node since its first report.
func (h *rotatingHarness) serve(id string, instances ...string) {
	group := h.Fake.ByID[id].Groups["workers"]
	known := group.Instances
	group.Instances, group.ProviderIDs = nil, nil
	progress := &shard.RotationProgress{Target: h.target}
	var staying, working int32
	for _, text := range instances {
		name, what, _ := strings.Cut(text, " ")
		i := shard.Instance{ID: name, State: shard.InstanceRunning, ProviderID: "provider-" + name, Created: h.FakeClock.Now().Unix()}
		if at := slices.IndexFunc(known, func(k shard.Instance) bool { return k.ID == name }); at >= 0 {
			i.Created = known[at].Created
		}
		switch what {
		case "outdated":
			i.Outdated = "config-drift"
		case "pending":
			i.State = shard.InstancePending
		case "terminating":
			i.State, i.Outdated = shard.InstanceTerminating, "config-drift"
		}
		if i.State == shard.InstanceRunning {
			working++
		}
		if what != "terminating" {
			staying++
		}
		switch {
		case what == "outdated":
			if progress.Outdated == nil {
				progress.Outdated = map[string]int32{}
			}
			progress.Outdated["config-drift"]++
		case what != "terminating":
			progress.UpToDate++
		}
		if what != "pending" && len(h.controller.nodes.WithProviderID(i.ProviderID)) == 0 {
			h.Put(h.Informers.Nodes, readyNode(name, corev1.ConditionTrue, h.FakeClock.Now()))
		}
		group.Instances = append(group.Instances, i)
	}
	progress.UpToDate += max(0, group.Size-staying)
	progress.Above, progress.Below = max(0, int32(len(instances))-group.Size), max(0, group.Size-working)
	group.Progress = progress
	h.Fake.SetGroup(id, group)
}

// serveGrants lets the servers store the grants of their shard groups.
func (h *rotatingHarness) serveGrants() {
	for _, id := range []string{"a", "b"} {
		group := h.Fake.ByID[id].Groups["workers"]
		group.Rotation = controllers.ShardGrant(h.shardGroup(id).Spec.Rotation)
		h.Fake.SetGroup(id, group)
	}
}

// expectGrants settles the pool, and compares the grants of the shards, as surge, unavailable and
// up to date.
func (h *rotatingHarness) expectGrants(a, b string) time.Duration {
	h.T.Helper()
	requeue := h.settle()
	for id, want := range map[string]string{"a": a, "b": b} {
		got := "none"
		if grant := h.shardGroup(id).Spec.Rotation; grant != nil {
			got = fmt.Sprintf("%d/%d to %d", grant.MaxSurge, grant.MaxUnavailable, grant.UpToDate)
		}
		assert.Equal(h.T, want, got, "shard %s", id)
	}
	h.serveGrants()
	return requeue
}

func (h *rotatingHarness) rollingOut() (state, message string) {
	pool := h.pool()
	if condition := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionRollingOut); condition != nil {
		message = condition.Message
	}
	return conditionOf(pool, v1beta1.ConditionRollingOut), message
}

func (h *rotatingHarness) rotationEvents() []string {
	return slices.DeleteFunc(h.Events(), func(event string) bool { return !strings.Contains(event, "Rotation") })
}

// A rotation is granted to one shard after the other, in steps that wait for the Nodes of new
// instances, and writes nothing else.
func TestRotationIsGrantedInSteps(t *testing.T) {
	h := newRotatingPool(t, &v1beta1.RotationPolicy{MinReadySeconds: ptr.To[int32](60)})
	h.expectGrants("0/0 to 0", "0/0 to 0")
	state, _ := h.rollingOut()
	assert.Equal(t, "False NotRollingOut", state)
	assert.Empty(t, h.rotationEvents())

	h.serve("a", "a0 outdated", "a1 outdated")
	h.serve("b", "b0 outdated", "b1 outdated")
	h.expectGrants("1/0 to 1", "0/0 to 0")
	state, message := h.rollingOut()
	assert.Equal(t, "True RollingOut", state)
	assert.Equal(t, "4 of 4 instances are outdated (config-drift 4); 0 are being replaced", message)
	assert.Equal(t, "True Ready", conditionOf(h.pool(), v1beta1.ConditionReady))
	assert.Equal(t, []string{"Normal RotationStarted " + message}, h.rotationEvents())

	h.serve("a", "a0 outdated", "a1 outdated", "a2 pending")
	h.expectGrants("1/0 to 1", "0/0 to 0")
	h.serve("a", "a0 terminating", "a1 outdated", "a2")
	assert.Equal(t, time.Minute, h.expectGrants("1/0 to 1", "0/0 to 0"), "the Node is Ready, but not for long enough")
	h.Advance(time.Minute)
	h.serve("a", "a1 outdated", "a2")
	h.expectGrants("1/0 to 2", "0/0 to 0")
	h.serve("a", "a1 terminating", "a2", "a3")
	h.expectGrants("1/0 to 0", "0/0 to 0")
	h.serve("a", "a2", "a3")
	h.expectGrants("0/0 to 0", "0/0 to 0")
	assert.Equal(t, time.Minute, h.expectGrants("0/0 to 0", "0/0 to 0"))
	h.Advance(time.Minute)
	h.expectGrants("0/0 to 0", "1/0 to 1")

	h.serve("b", "b1 outdated", "b2")
	h.Advance(time.Minute)
	h.expectGrants("0/0 to 0", "1/0 to 2")
	h.serve("b", "b2", "b3")
	h.expectGrants("0/0 to 0", "0/0 to 0")
	state, _ = h.rollingOut()
	assert.Equal(t, "False NotRollingOut", state)
	assert.Equal(t, []string{"Normal RotationFinished all instances are up to date"}, h.rotationEvents())
}

// A new instance without a Ready Node stops the rotation after the deadline, until it is repaired.
func TestAFailedRotationStops(t *testing.T) {
	surge := intstr.FromString("50%")
	h := newRotatingPool(t, &v1beta1.RotationPolicy{MaxSurge: &surge})
	h.serve("a", "a0 outdated", "a1 outdated")
	h.serve("b", "b0 outdated", "b1 outdated")
	h.expectGrants("1/0 to 1", "1/0 to 1")
	h.serve("a", "a0 outdated", "a1 outdated", "a2 pending")
	h.Advance(29 * time.Minute)
	assert.Equal(t, time.Minute, h.expectGrants("1/0 to 1", "1/0 to 1"))
	h.rotationEvents()
	h.Advance(time.Minute)
	h.expectGrants("1/0 to 0", "0/0 to 0")
	state, message := h.rollingOut()
	assert.Equal(t, "True RotationFailed", state)
	assert.Contains(t, message, "4 of 4 instances are outdated (config-drift 4): instance a2 on shard a was created at ")
	assert.Len(t, h.rotationEvents(), 1)
	h.expectGrants("1/0 to 0", "0/0 to 0")
	assert.Empty(t, h.rotationEvents())
	h.serve("a", "a0 outdated", "a1 outdated", "a2")
	h.expectGrants("1/0 to 2", "1/0 to 1")
	state, _ = h.rollingOut()
	assert.Equal(t, "True RollingOut", state)
}

// Without a policy the shards decide, and a policy that is removed leaves nothing behind.
func TestAPoolWithoutAPolicyHasNoGrants(t *testing.T) {
	h := newRotatingPool(t, nil)
	h.serve("a", "a0 outdated", "a1 outdated")
	h.expectGrants("none", "none")
	state, _ := h.rollingOut()
	assert.Empty(t, state)
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) {
		pool.Spec.Rotation = &v1beta1.RotationPolicy{Paused: ptr.To(true), MaxAgeSeconds: 7200}
	})
	h.expectGrants("0/0 to 0", "0/0 to 0")
	assert.EqualValues(t, 7200, h.shardGroup("a").Spec.Rotation.MaxAgeSeconds)
	state, _ = h.rollingOut()
	assert.Equal(t, "True Paused", state)
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { pool.Spec.Rotation = nil })
	h.expectGrants("none", "none")
	state, _ = h.rollingOut()
	assert.Empty(t, state)
}

// A server that does not know grants is named, and gets a grant of nothing: a newer server in its place is to
// find it.
func TestARotationOfAnOlderServer(t *testing.T) {
	h := newRotatingPool(t, nil)
	group := h.Fake.ByID["b"].Groups["workers"]
	group.Progress, group.Revision = nil, &shard.Revision{UID: "other"}
	h.Fake.SetGroup("b", group)
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { pool.Spec.Rotation = &v1beta1.RotationPolicy{Canary: 1} })
	h.expectGrants("0/0 to 0", "0/0 to 0")
	state, message := h.rollingOut()
	assert.Equal(t, "False UnsupportedByServer", state)
	assert.Contains(t, message, "one instance at a time: b")
}

// What cannot be seen stops the rotation: a pause keeps the grants, a shard that is away keeps its
// part, and Nodes that cannot be listed are not ready.
func TestARotationWithMissingInformation(t *testing.T) {
	h := newRotatingPool(t, &v1beta1.RotationPolicy{PauseWhile: []v1beta1.PoolState{v1beta1.PauseWhileShardUnreachable}})
	h.serve("a", "a0 outdated", "a1")
	h.serve("b", "b0 outdated", "b1")
	h.expectGrants("1/0 to 2", "0/0 to 0")
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { controllertest.Paused(pool) })
	h.serve("a", "a0", "a1")
	h.expectGrants("1/0 to 2", "0/0 to 0")
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { pool.Annotations = nil })
	h.expectGrants("0/0 to 0", "0/0 to 0")
	h.expectGrants("0/0 to 0", "1/0 to 2")
	h.controller.NodesReachable = func() bool { return false }
	h.expectGrants("0/0 to 0", "0/0 to 0")
	state, _ := h.rollingOut()
	assert.Equal(t, "True WorkloadClusterUnreachable", state)
}

// A shard that is away may still have what it had above its size, although it has no grant for that.
func TestAShardThatIsAwayKeepsWhatItUses(t *testing.T) {
	h := newRotatingPool(t, &v1beta1.RotationPolicy{ProgressDeadlineSeconds: ptr.To[int32](0)})
	h.serve("a", "a0", "a1", "a2")
	h.serve("b", "b0 outdated", "b1")
	h.expectGrants("0/0 to 0", "0/0 to 0")
	h.Fake.ByID["a"].Reachable = false
	h.expectGrants("0/0 to 0", "0/0 to 0")
	state, _ := h.rollingOut()
	assert.Equal(t, "True ShardUnreachable", state)
	h.Fake.ByID["a"].Reachable = true
	h.serve("a", "a0", "a1")
	h.expectGrants("0/0 to 0", "1/0 to 2")
}

// Another operator begins without reports of the shards: no rotation has ended because of that, and no
// shard starts more.
func TestARotationOfAShardThatWasNotRead(t *testing.T) {
	h := newRotatingPool(t, &v1beta1.RotationPolicy{})
	h.serve("a", "a0 outdated", "a1")
	h.expectGrants("1/0 to 2", "0/0 to 0")
	h.rotationEvents()
	server := h.Fake.ByID["a"]
	group := server.Groups["workers"]
	server.Synced = false
	delete(server.Groups, "workers")
	h.settle()
	state, _ := h.rollingOut()
	assert.Equal(t, "True RollingOut", state)
	assert.Empty(t, h.rotationEvents())
	server.Synced = true
	h.Fake.SetGroup("a", group)
	h.serve("a", "a0", "a1")
	h.settle()
	state, _ = h.rollingOut()
	assert.Equal(t, "False NotRollingOut", state)
	assert.Len(t, h.rotationEvents(), 1)
}

// A rotation of another policy has not ended before all servers count by it: the condition has the
// generation of the policy that it is about.
func TestARotationEndsWhenAllShardsKnowThePolicy(t *testing.T) {
	h := newRotatingPool(t, &v1beta1.RotationPolicy{})
	generation := func() int64 {
		h.settle()
		return meta.FindStatusCondition(h.pool().Status.Conditions, v1beta1.ConditionRollingOut).ObservedGeneration
	}
	assert.EqualValues(t, 1, generation())
	h.Advance(time.Minute)
	after := metav1.NewTime(h.FakeClock.Now().Truncate(time.Second))
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) {
		pool.Generation++
		pool.Spec.Rotation = &v1beta1.RotationPolicy{After: &after}
	})
	assert.EqualValues(t, 1, generation(), "no server has the policy")
	h.serveGrants()
	assert.EqualValues(t, 1, generation(), "the clocks of the servers are behind")
	h.serve("a", "a0 outdated", "a1 outdated")
	h.serve("b", "b0 outdated", "b1 outdated")
	assert.EqualValues(t, 2, generation())
	state, _ := h.rollingOut()
	assert.Equal(t, "True RollingOut", state)
	h.serve("a", "a2", "a3")
	h.serve("b", "b2", "b3")
	assert.EqualValues(t, 2, generation())
	state, _ = h.rollingOut()
	assert.Equal(t, "False NotRollingOut", state)
}

// A rotation can be paused although the sizes of its pool cannot be decided, and goes on only when
// they can.
func TestTheRotationOfABlockedPoolIsPaused(t *testing.T) {
	h := newRotatingPool(t, &v1beta1.RotationPolicy{})
	h.serve("a", "a0 outdated", "a1")
	h.expectGrants("1/0 to 2", "0/0 to 0")
	h.Put(h.Informers.MachinePools, machinePool("second", ptr.To[int32](4)))
	h.expectGrants("1/0 to 2", "0/0 to 0")
	assert.Equal(t, "False MachinePoolConflict", conditionOf(h.pool(), v1beta1.ConditionReady))
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { pool.Spec.Rotation.Paused = ptr.To(true) })
	h.expectGrants("1/0 to 0", "0/0 to 0")
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { pool.Spec.Rotation = &v1beta1.RotationPolicy{Canary: 1} })
	h.expectGrants("1/0 to 0", "0/0 to 0")
}

// Another configuration ends the grant of the rotation before: no shard goes on to the number of the
// last step with instances that nobody has looked at.
func TestAnotherConfigurationBeginsAnotherRotation(t *testing.T) {
	h := newRotatingPool(t, &v1beta1.RotationPolicy{Canary: 1})
	h.serve("a", "a0", "a1")
	h.serve("b", "b0 outdated", "b1")
	h.expectGrants("0/0 to 0", "1/0 to 2")
	assert.Equal(t, "one", h.shardGroup("b").Spec.Rotation.Target)
	// The operator changes the settings before a server has reported what it makes of them.
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { pool.Spec.InstanceType = "huge" })
	h.expectGrants("0/0 to 0", "1/0 to 2")
	assert.Equal(t, "one", h.shardGroup("b").Spec.Rotation.Target, "the server has another target, and starts nothing")
	h.target = "two"
	h.serve("a", "a0 outdated", "a1 outdated")
	h.serve("b", "b0 outdated", "b1 outdated")
	h.expectGrants("0/0 to 0", "0/0 to 0")
	h.expectGrants("1/0 to 1", "0/0 to 0")
	assert.Equal(t, "two", h.shardGroup("a").Spec.Rotation.Target)
}

// A policy that forbids what the cache still allows is found before a shard gets more.
func TestAGrantIsNotDecidedFromAStaleCache(t *testing.T) {
	h := newRotatingPool(t, &v1beta1.RotationPolicy{})
	h.serve("a", "a0 outdated", "a1 outdated")
	controllertest.Change(h.API, "workers", func(pool *v1beta1.NstanceMachinePool) {
		pool.Generation++
		pool.Spec.Rotation = &v1beta1.RotationPolicy{Paused: ptr.To(true)}
	})
	h.expect()
	h.Show()
	h.expectGrants("0/0 to 0", "0/0 to 0")
	state, _ := h.rollingOut()
	assert.Equal(t, "True Paused", state)
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) {
		pool.Generation++
		pool.Spec.Rotation = &v1beta1.RotationPolicy{Canary: 1}
	})
	h.expectGrants("1/0 to 1", "0/0 to 0")
}

// No server may make the budget of others larger, or make the API server reject a grant.
func TestARotationWithAHostileServer(t *testing.T) {
	h := newRotatingPool(t, &v1beta1.RotationPolicy{ProgressDeadlineSeconds: ptr.To[int32](0)})
	h.serve("b", "b0 outdated", "b1 outdated")
	for name, change := range map[string]func(*shard.Group){
		"numbers": func(g *shard.Group) {
			g.Progress.Above, g.Progress.Below, g.Progress.UpToDate = math.MinInt32, math.MinInt32, math.MaxInt32
			g.Progress.Outdated = map[string]int32{"x": math.MaxInt32, "y": math.MaxInt32}
		},
		"a grant": func(g *shard.Group) {
			g.Rotation = &shard.RotationGrant{MaxSurge: math.MinInt32, MaxUnavailable: math.MaxInt32}
		},
		"a long target": func(g *shard.Group) { g.Progress.Target = strings.Repeat("x", v1beta1.MaxTarget+1) },
	} {
		t.Run(name, func(t *testing.T) {
			h.serve("a", "a0", "a1")
			group := h.Fake.ByID["a"].Groups["workers"]
			change(&group)
			h.Fake.SetGroup("a", group)
			h.settle()
			var surge, unavailable int32
			for _, id := range []string{"a", "b"} {
				grant := h.shardGroup(id).Spec.Rotation
				surge, unavailable = surge+grant.MaxSurge, unavailable+grant.MaxUnavailable
				assert.LessOrEqual(t, len(grant.Target), v1beta1.MaxTarget)
			}
			assert.LessOrEqual(t, surge, int32(1))
			assert.Zero(t, unavailable)
		})
	}
}

// Windows that are too short before the forced age of an instance are known in time.
func TestTheForcedAgeIsNear(t *testing.T) {
	h := newRotatingPool(t, &v1beta1.RotationPolicy{Windows: []v1beta1.TimeWindow{{Schedule: "0 12 * * *", DurationMinutes: 10}}})
	forced := func(in time.Duration) string {
		h.serve("a", "a0 outdated", "a1 outdated")
		group := h.Fake.ByID["a"].Groups["workers"]
		group.Progress.ForcedAt = h.FakeClock.Now().Add(in)
		h.Fake.SetGroup("a", group)
		h.settle()
		state, _ := h.rollingOut()
		return state
	}
	assert.Equal(t, "True OutsideWindow", forced(100*24*time.Hour))
	h.rotationEvents()
	assert.Equal(t, "True ForcedAgeNear", forced(11*time.Hour))
	_, message := h.rollingOut()
	assert.Equal(t, "2 of 4 instances are outdated (config-drift 2): the first of them reaches the forced age of its shard at 2026-01-01T11:00:00Z, "+
		"and is then replaced at any time; before, the rotation cannot make the 2 steps that are left", message)
	assert.Len(t, h.Events(), 1)
	h.Advance(time.Minute)
	h.expect()
	h.serve("a", "a0", "a1")
	h.settle()
	state, _ := h.rollingOut()
	assert.Equal(t, "False NotRollingOut", state)
}

// A window that cannot be read is known before something is outdated.
func TestAnInvalidSchedule(t *testing.T) {
	h := newRotatingPool(t, &v1beta1.RotationPolicy{Windows: []v1beta1.TimeWindow{{Schedule: "0 25 * * *", DurationMinutes: 60}}})
	h.expectGrants("0/0 to 0", "0/0 to 0")
	state, message := h.rollingOut()
	assert.Equal(t, "False InvalidSchedule", state)
	assert.Contains(t, message, "spec.rotation.windows[0]: schedule \"0 25 * * *\"")
	h.serve("a", "a0 outdated", "a1")
	h.expectGrants("0/0 to 0", "0/0 to 0")
	state, _ = h.rollingOut()
	assert.Equal(t, "True InvalidSchedule", state)
}

// Changes of Nodes and instances enqueue pools with a policy.
func TestChangesEnqueueRotatingPools(t *testing.T) {
	for _, policy := range []*v1beta1.RotationPolicy{nil, {Canary: 1}} {
		h := newRotatingPool(t, policy)
		enqueued := controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.instancesChanged("a", "workers") })
		assert.Equal(t, policy != nil, len(enqueued) > 0)
	}
}
