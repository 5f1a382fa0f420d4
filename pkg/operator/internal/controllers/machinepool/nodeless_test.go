// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/nodeless"
	"nstance.dev/operator/pkg/operator/shard"
)

// nodelessHarness is a pool of shards a and b, whose servers report running instances.
type nodelessHarness struct{ *harness }

func newNodelessHarness(t *testing.T) *nodelessHarness {
	t.Helper()
	pool := newPool("a", "b")
	h := &nodelessHarness{newHarness(t, withSizes(map[string]int32{"a": 2, "b": 2}), pool,
		ready(newShardGroup(pool, "a", 2)), ready(newShardGroup(pool, "b", 2)))}
	h.scale(4)
	for range 3 {
		_, _, err := h.sync()
		require.NoError(t, err)
		h.Show()
	}
	h.controller.nodesSynced = func() bool { return true }
	return h
}

// run makes shard b report running instances.
func (h *nodelessHarness) run(ids ...string) {
	group := shard.Group{Key: "workers", Size: 2, ListsInstances: true}
	for _, id := range ids {
		group.Instances = append(group.Instances, shard.Instance{ID: id, State: shard.InstanceRunning, ProviderID: "qemu:///b/" + id})
	}
	h.Fake.SetGroup("b", group)
}

// join adds the Node of an instance.
func (h *nodelessHarness) join(id string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: id}, Spec: corev1.NodeSpec{ProviderID: "qemu:///b/" + id}}
	h.Put(h.Informers.Nodes, node)
	return node
}

// expectMissing syncs the pool, and expects that its condition NodesJoined is false with a message,
// or not if the message is empty. It returns the delay until the next sync.
func (h *nodelessHarness) expectMissing(message string) time.Duration {
	h.T.Helper()
	_, requeue, err := h.sync()
	require.NoError(h.T, err)
	h.Show()
	joined := meta.FindStatusCondition(h.pool().Status.Conditions, v1beta1.ConditionNodesJoined)
	if message == "" {
		assert.True(h.T, joined == nil || joined.Status == metav1.ConditionTrue, "%v", joined)
		return requeue
	}
	require.NotNil(h.T, joined)
	assert.Equal(h.T, []string{string(metav1.ConditionFalse), v1beta1.ReasonNodeMissing, message}, []string{string(joined.Status), joined.Reason, joined.Message})
	ready := meta.FindStatusCondition(h.pool().Status.Conditions, v1beta1.ConditionReady)
	require.NotNil(h.T, ready)
	assert.Equal(h.T, []string{string(metav1.ConditionFalse), v1beta1.ReasonNodeMissing, message}, []string{string(ready.Status), ready.Reason, ready.Message})
	return requeue
}

func missingText(id string) string {
	return fmt.Sprintf("instance %s on shard b has no Node with the provider id %q", id, "qemu:///b/"+id)
}

// TestInstanceWithoutANode: an instance that has run for five minutes without a Node is named, by a
// condition, an event and a metric, until it has a Node or has ended.
func TestInstanceWithoutANode(t *testing.T) {
	h := newNodelessHarness(t)
	h.run("i1", "i2")
	h.join("i1")
	assert.Equal(t, nodeless.After, h.expectMissing(""))
	h.Advance(nodeless.After - time.Second)
	assert.Equal(t, time.Second, h.expectMissing(""))
	h.ExpectEvents()
	h.Advance(time.Second)
	assert.Zero(t, h.expectMissing(missingText("i2")))
	h.ExpectEvents("Warning NodeMissing " + missingText("i2"))
	h.ExpectSeries(`nstance_operator_instances_without_node{pool="workers"} 1`)

	h.join("i2")
	h.expectMissing("")
	assert.True(t, meta.IsStatusConditionTrue(h.pool().Status.Conditions, v1beta1.ConditionReady))

	// Somebody deletes the Nodes of instances that run.
	for _, id := range []string{"i1", "i2"} {
		require.NoError(t, h.Informers.Nodes.GetStore().Delete(h.join(id)))
	}
	h.expectMissing("")
	h.Advance(nodeless.After)
	h.expectMissing(missingText("i1") + "; " + missingText("i2"))
	h.run("i1")
	h.expectMissing(missingText("i1"))
	h.run()
	h.expectMissing("")
}

// TestNodesThatAreNotKnownAreNotMissing, nor are the Nodes of instances that do not run.
func TestNodesThatAreNotKnownAreNotMissing(t *testing.T) {
	for name, change := range map[string]func(*nodelessHarness){
		"the cache of Nodes is incomplete":       func(h *nodelessHarness) { h.controller.nodesSynced = func() bool { return false } },
		"the workload cluster cannot be reached": func(h *nodelessHarness) { h.controller.NodesReachable = func() bool { return false } },
		"the shard is not connected":             func(h *nodelessHarness) { h.Fake.ByID["b"].Reachable = false },
		"the instance is pending":                func(h *nodelessHarness) { h.setState(shard.InstancePending) },
		"the instance is terminating":            func(h *nodelessHarness) { h.setState(shard.InstanceTerminating) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newNodelessHarness(t)
			h.run("i1")
			change(h)
			for range 3 {
				h.expectMissing("")
				h.Advance(nodeless.After)
			}
		})
	}
}

// setState changes the state of the instance of shard b.
func (h *nodelessHarness) setState(state shard.InstanceState) {
	h.Fake.SetGroup("b", shard.Group{Key: "workers", Size: 2, ListsInstances: true, Instances: []shard.Instance{{ID: "i1", State: state, ProviderID: "qemu:///b/i1"}}})
}

// TestAnOutageBeginsTheTimeAgain: Nodes may have joined during an outage of their API server.
func TestAnOutageBeginsTheTimeAgain(t *testing.T) {
	h := newNodelessHarness(t)
	reachable := true
	h.controller.NodesReachable = func() bool { return reachable }
	h.run("i1")
	h.expectMissing("")
	h.Advance(nodeless.After - time.Second)
	reachable = false
	h.expectMissing("")
	reachable = true
	h.Advance(time.Second)
	assert.Equal(t, nodeless.After, h.expectMissing(""))
}
