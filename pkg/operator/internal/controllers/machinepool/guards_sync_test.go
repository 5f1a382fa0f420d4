// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
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

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

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

// terminate removes instances from what the servers report.
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
	assert.Equal(t, "False Scaling", conditionOf(h.pool(), v1beta1.ConditionReady))
	h.terminate("b0")
	h.settle()
	h.expectSizes(map[string]int32{"a": 1, "b": 1})
	assert.Equal(t, "True Removing", h.scalingDown())
	h.terminate("a1")
	h.settle()
	h.expectSizes(map[string]int32{"a": 1, "b": 0})
	assert.Empty(t, h.scalingDown())
	assert.Empty(t, slices.DeleteFunc(h.Events(), func(event string) bool { return strings.HasPrefix(event, "Normal Scaled") }))
}

// A blocked scale-down is one event, and continues when the state changes.
func TestBlockedScaleDown(t *testing.T) {
	guards := upTo("1")
	guards.PauseWhile = []v1beta1.ScaleDownPause{v1beta1.PauseWhileInstanceNotReady}
	h := newGuardedPool(t, guards)
	h.Put(h.Informers.Nodes, readyNode("a0", corev1.ConditionFalse, h.FakeClock.Now()))
	h.Events()
	h.scale(3)
	for range 3 {
		assert.Zero(t, h.settle(), "the Node enqueues the pool")
		h.Advance(time.Minute)
	}
	h.expectSizes(map[string]int32{"a": 2, "b": 2})
	assert.Equal(t, "False InstanceNotReady", h.scalingDown())
	h.ExpectEvents(`Warning ScaleDownBlocked 1 more instances are to be removed: 1 of 4 remaining instances are not ready: instance a0 has Node "a0", which is not Ready`)
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { controllertest.Paused(pool) })
	h.settle()
	assert.Equal(t, "False InstanceNotReady", h.scalingDown(), "a pause decides nothing")
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { pool.Annotations = nil })
	h.Put(h.Informers.Nodes, readyNode("a0", corev1.ConditionTrue, h.FakeClock.Now()))
	h.settle()
	h.expectSizes(map[string]int32{"a": 2, "b": 1})
	assert.Empty(t, h.scalingDown())
}

// Two Nodes with one provider id are no information about an instance.
func TestAmbiguousNodesBlockAScaleDown(t *testing.T) {
	h := newGuardedPool(t, &v1beta1.ScaleDownGuards{MinReadySeconds: 1})
	h.Advance(time.Hour)
	twin := readyNode("twin", corev1.ConditionTrue, h.FakeClock.Now().Add(-time.Hour))
	twin.Spec.ProviderID = "provider-a0"
	h.Put(h.Informers.Nodes, twin)
	h.scale(3)
	h.settle()
	h.expectSizes(map[string]int32{"a": 2, "b": 2})
	assert.Equal(t, "False InstanceNotReady", h.scalingDown())
}

// The period starts when this leader sees the lowered replicas, and ends with a sync. It
// starts again if the replicas are raised, and with the next leader.
func TestStabilizationOfAScaleDown(t *testing.T) {
	h := newGuardedPool(t, &v1beta1.ScaleDownGuards{StabilizationSeconds: 60})
	h.Advance(time.Hour)
	h.scale(3)
	assert.Equal(t, time.Minute, h.settle())
	assert.Equal(t, "False Stabilizing", h.scalingDown())
	h.Advance(59 * time.Second)
	assert.Equal(t, time.Second, h.settle())
	h.expectSizes(map[string]int32{"a": 2, "b": 2})

	h.scale(4)
	assert.Zero(t, h.settle())
	assert.Empty(t, h.scalingDown())
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
	assert.Empty(t, h.scalingDown())
	assert.Empty(t, h.controller.scaleDowns.byPool)
}

// Only pools with guards are synced for what only guards need.
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
