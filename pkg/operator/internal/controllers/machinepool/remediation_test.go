// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

// annotated returns the Node of an instance, with the annotation that replaces it.
func (h *rotatingHarness) annotated(id string) *corev1.Node {
	node := readyNode(id, corev1.ConditionTrue, h.FakeClock.Now())
	node.Annotations = map[string]string{v1beta1.AnnotationRemediateInstance: ""}
	return node
}

// annotate shows a Node with the annotation in the cache and on the API server.
func (h *rotatingHarness) annotate(node *corev1.Node) {
	h.T.Helper()
	h.Put(h.Informers.Nodes, node)
	_, err := h.KubeClient.CoreV1().Nodes().Create(h.Ctx, node, metav1.CreateOptions{})
	require.NoError(h.T, err)
}

// replaced settles the pool and returns the instances that each shard is to replace.
func (h *rotatingHarness) replaced() string {
	h.T.Helper()
	h.settle()
	var all []string
	for _, id := range []string{"a", "b"} {
		all = append(all, strings.Join(h.shardGroup(id).Spec.Replace, " "))
	}
	return strings.Join(all, ", ")
}

// An instance is replaced while its Node has the annotation, and no longer.
func TestInstancesOfAnnotatedNodesAreReplaced(t *testing.T) {
	h := newRotatingPool(t, nil)
	assert.Equal(t, ", ", h.replaced())
	h.annotate(h.annotated("a1"))
	h.annotate(h.annotated("b0"))
	h.annotate(h.annotated("other"))
	h.Events()
	assert.Equal(t, "a1, b0", h.replaced())
	h.ExpectEvents("Normal ReplacingInstances the instances of Nodes with the annotation nstance.dev/remediate-instance are being replaced: a1, b0")
	h.expect()

	h.serve("a", "a0", "a1", "a2 pending")
	assert.Equal(t, "a1, b0", h.replaced(), "its replacement starts")
	h.serve("a", "a0", "a1 terminating", "a2")
	assert.Equal(t, ", b0", h.replaced(), "it is being terminated")
	h.Put(h.Informers.Nodes, readyNode("b0", corev1.ConditionTrue, h.FakeClock.Now()))
	assert.Equal(t, ", ", h.replaced(), "the user has taken it back")
}

// What is not known takes no request back, and makes none.
func TestRemediationWithMissingInformation(t *testing.T) {
	for name, lose := range map[string]func(h *rotatingHarness){
		"the Nodes are not known":        func(h *rotatingHarness) { h.controller.nodesSynced = func() bool { return false } },
		"the Nodes cannot be reached":    func(h *rotatingHarness) { h.controller.NodesReachable = func() bool { return false } },
		"the shard is not connected":     func(h *rotatingHarness) { h.Fake.ByID["a"].Reachable = false },
		"the server does not know of it": func(h *rotatingHarness) { h.forget("a") },
	} {
		t.Run(name, func(t *testing.T) {
			h := newRotatingPool(t, nil)
			h.annotate(h.annotated("a1"))
			assert.Equal(t, "a1, ", h.replaced())
			lose(h)
			h.Put(h.Informers.Nodes, readyNode("a1", corev1.ConditionTrue, h.FakeClock.Now()))
			assert.Equal(t, "a1, ", h.replaced())
			h.Put(h.Informers.Nodes, h.annotated("a0"))
			assert.Equal(t, "a1, ", h.replaced())
		})
	}
}

// forget lets the server of a shard be one that does not know lists of instances to replace.
func (h *rotatingHarness) forget(id string) {
	group := h.Fake.ByID[id].Groups["workers"]
	group.Progress = nil
	h.Fake.SetGroup(id, group)
}

// Only a Node that belongs to the instance for certain, and has the annotation now, counts.
func TestRemediationOfDoubtfulNodes(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(h *rotatingHarness)
		want    string
	}{
		"the cache is stale": {func(h *rotatingHarness) { h.Put(h.Informers.Nodes, h.annotated("a1")) }, ", "},
		"a second Node has the provider id": {func(h *rotatingHarness) {
			h.annotate(h.annotated("a1"))
			h.Put(h.Informers.Nodes, node("second", "provider-a1"))
		}, ", "},
		"the Node is of another shard": {func(h *rotatingHarness) {
			node := h.annotated("a1")
			node.Labels = map[string]string{v1beta1.LabelShard: "b"}
			h.annotate(node)
		}, ", "},
		"an id that no shard group can have": {func(h *rotatingHarness) {
			long := strings.Repeat("a", maxInstanceID+1)
			h.annotate(h.annotated(long))
			h.serve("a", "a0", long)
		}, ", "},
		"the Node belongs to the instance": {func(h *rotatingHarness) {
			node := h.annotated("a1")
			node.Labels = map[string]string{v1beta1.LabelShard: "a"}
			h.annotate(node)
		}, "a1, "},
	} {
		t.Run(name, func(t *testing.T) {
			h := newRotatingPool(t, nil)
			test.prepare(h)
			assert.Equal(t, test.want, h.replaced())
		})
	}
}

// The annotation, and nothing else of a Node, enqueues the pool.
func TestAnnotationsEnqueuePools(t *testing.T) {
	h := newRotatingPool(t, nil)
	h.report("a", func(group *v1beta1.NstanceShardGroup) { group.Status.ProviderIDs = []string{"provider-a1"} })
	h.settle()
	plain, wanted := readyNode("a1", corev1.ConditionTrue, h.FakeClock.Now()), h.annotated("a1")
	for name, test := range map[string]struct {
		before, after *corev1.Node
		want          bool
	}{
		"added":        {plain, wanted, true},
		"removed":      {wanted, plain, true},
		"a new Node":   {nil, wanted, true},
		"Node is gone": {wanted, nil, true},
		"no change":    {wanted, wanted, false},
		"no request":   {plain, plain, false},
		"another Node": {nil, h.annotated("other"), false},
	} {
		enqueued := controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.remediationChanged(test.before, test.after) })
		assert.Equal(t, test.want, len(enqueued) > 0, name)
	}
}

// The list of a shard group is sorted, so that it is written once, and stays while it is not known.
func TestTheListOfInstancesToReplace(t *testing.T) {
	state := shardState{id: "a", remediated: map[string]replacementCause{"b": {}, "c": {}, "a": {}}}
	assert.True(t, slices.IsSorted(state.replace()))
	assert.Equal(t, []string{"x"}, (&shardState{group: &v1beta1.NstanceShardGroup{Spec: v1beta1.NstanceShardGroupSpec{Replace: []string{"x"}}}}).replace())
	assert.Nil(t, (&shardState{reported: &shard.Group{}}).replace())
}
