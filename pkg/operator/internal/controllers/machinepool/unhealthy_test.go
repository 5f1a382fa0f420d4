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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// newRemediatingPool is a pool of two instances on each of shards a and b. A Node may be lost for five
// minutes, an instance may run without a Node for ten, and two Nodes may be unhealthy.
func newRemediatingPool(t *testing.T, inFlight int32) *rotatingHarness {
	t.Helper()
	h := newRotatingPool(t, nil)
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) {
		pool.Spec.Remediation = &v1beta1.RemediationPolicy{
			Checks: v1beta1.RemediationChecks{
				UnhealthyNodeConditions:   []v1beta1.UnhealthyNodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, TimeoutSeconds: 300}},
				NodeStartupTimeoutSeconds: 600,
			},
			TriggerIf:   v1beta1.RemediationTriggerIf{UnhealthyLessThanOrEqualTo: ptr.To(intstr.FromInt32(2))},
			MaxInFlight: ptr.To(intstr.FromInt32(inFlight)),
		}
	})
	h.settle()
	h.Events()
	return h
}

// lose shows that the Nodes of instances are lost since now, in the cache and on the API server.
func (h *rotatingHarness) lose(ids ...string) {
	h.T.Helper()
	for _, id := range ids {
		h.showNode(readyNode(id, corev1.ConditionUnknown, h.FakeClock.Now()))
	}
}

// showNode shows a Node in the cache and on the API server.
func (h *rotatingHarness) showNode(node *corev1.Node) {
	h.T.Helper()
	h.Put(h.Informers.Nodes, node)
	h.storeNode(node)
}

// storeNode changes a Node on the API server.
func (h *rotatingHarness) storeNode(node *corev1.Node) {
	h.T.Helper()
	nodes := h.KubeClient.CoreV1().Nodes()
	_, err := nodes.Update(h.Ctx, node, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = nodes.Create(h.Ctx, node, metav1.CreateOptions{})
	}
	require.NoError(h.T, err)
}

// remediationEvents returns the events about unhealthy Nodes since the last call.
func (h *rotatingHarness) remediationEvents() []string {
	return slices.DeleteFunc(h.Events(), func(event string) bool {
		return !strings.Contains(event, reasonReplacing) && !strings.Contains(event, v1beta1.ReasonTooManyUnhealthy)
	})
}

func (h *rotatingHarness) remediating() (state, message string) {
	pool := h.pool()
	if condition := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionRemediating); condition != nil {
		message = condition.Message
	}
	return conditionOf(pool, v1beta1.ConditionRemediating), message
}

// An instance is replaced when its Node has been lost for long enough, and the next when the first is gone.
func TestInstancesOfUnhealthyNodesAreReplaced(t *testing.T) {
	h := newRemediatingPool(t, 1)
	h.lose("a1")
	assert.Equal(t, 5*time.Minute, h.settle())
	assert.Equal(t, ", ", h.replaced())
	state, _ := h.remediating()
	assert.Equal(t, "False NotRemediating", state)

	h.Advance(time.Minute)
	h.lose("b0")
	h.Advance(4*time.Minute - 1)
	assert.Equal(t, ", ", h.replaced())
	h.Advance(1)
	h.Events()
	assert.Equal(t, "a1, ", h.replaced())
	assert.Equal(t, []string{"Normal ReplacingInstances the instances of unhealthy Nodes are being replaced: a1 (Ready is Unknown)"}, h.remediationEvents())
	state, message := h.remediating()
	assert.Equal(t, "True Remediating", state)
	assert.Equal(t, "2 Nodes are unhealthy, and 1 of their instances are being replaced: a1 (Ready is Unknown)", message)
	h.expect()

	h.Advance(time.Minute)
	assert.Equal(t, "a1, ", h.replaced(), "one at a time")
	h.serve("a", "a0", "a1 terminating", "a2")
	assert.Equal(t, ", ", h.replaced(), "it is being terminated")
	h.serve("a", "a0", "a2")
	assert.Equal(t, ", b0", h.replaced(), "it is gone")
	h.showNode(readyNode("b0", corev1.ConditionTrue, h.FakeClock.Now()))
	assert.Equal(t, ", ", h.replaced(), "the Node is healthy again")
	state, message = h.remediating()
	assert.Equal(t, "False NotRemediating", state)
	assert.Empty(t, message)
}

// An instance without a Node is replaced, unless the API server has the Node.
func TestInstancesWithoutANodeAreReplaced(t *testing.T) {
	for name, joined := range map[string]bool{"it has not joined": false, "it has joined just now": true} {
		t.Run(name, func(t *testing.T) {
			h := newRemediatingPool(t, 1)
			h.Remove(h.Informers.Nodes, node("b1", "provider-b1"))
			h.storeNode(node("b0", "provider-b0"))
			if joined {
				h.storeNode(node("other-name", "provider-b1"))
			}
			assert.Equal(t, ", ", h.replaced())
			h.Advance(10*time.Minute - 1)
			assert.Equal(t, ", ", h.replaced())
			h.Events()
			h.Advance(1)
			if joined {
				assert.Equal(t, ", ", h.replaced())
				assert.Empty(t, h.remediationEvents())
				return
			}
			assert.Equal(t, ", b1", h.replaced())
			assert.Equal(t, []string{"Normal ReplacingInstances the instances of unhealthy Nodes are being replaced: instance b1 (it runs without a Node)"}, h.remediationEvents())
			_, message := h.remediating()
			assert.Equal(t, "1 Nodes are unhealthy, and 1 of their instances are being replaced: instance b1 (it runs without a Node)", message)
		})
	}
}

// While too many Nodes are unhealthy, the network or the control plane has a problem: what has begun goes
// on, and nothing else begins. What began before the limit counts from the first moment.
func TestTooManyUnhealthyNodes(t *testing.T) {
	h := newRemediatingPool(t, 4)
	h.lose("a1")
	h.Advance(5 * time.Minute)
	assert.Equal(t, "a1, ", h.replaced())
	h.Events()
	h.lose("a0", "b0")
	assert.Equal(t, "a1, ", h.replaced())
	state, _ := h.remediating()
	assert.Equal(t, "True Remediating", state, "nothing is prevented yet")
	h.Advance(5 * time.Minute)
	assert.Equal(t, "a1, ", h.replaced())
	state, message := h.remediating()
	assert.Equal(t, "True TooManyUnhealthy", state)
	assert.Equal(t, "3 Nodes are unhealthy, more than the 2 of spec.remediation.triggerIf, and no further instance is replaced", message)
	assert.Equal(t, []string{"Warning TooManyUnhealthy " + message}, h.remediationEvents())
	h.settle()
	assert.Empty(t, h.remediationEvents(), "the event is recorded once")

	h.showNode(readyNode("b0", corev1.ConditionTrue, h.FakeClock.Now()))
	assert.Equal(t, "a0 a1, ", h.replaced())
}

// Without certainty no request is made, and none is taken back.
func TestUnhealthyNodesWithMissingInformation(t *testing.T) {
	for name, test := range map[string]struct {
		lose func(h *rotatingHarness)
		want string
	}{
		"all is known":                 {func(*rotatingHarness) {}, "a1, b1"},
		"the Nodes are not known":      {func(h *rotatingHarness) { h.controller.nodesSynced = func() bool { return false } }, "a1, "},
		"the Nodes cannot be reached":  {func(h *rotatingHarness) { h.controller.NodesReachable = func() bool { return false } }, "a1, "},
		"the shard is not connected":   {func(h *rotatingHarness) { h.Fake.ByID["b"].Reachable = false }, "a1, "},
		"the shard is not read":        {func(h *rotatingHarness) { h.Fake.ByID["b"].Synced = false }, "a1, "},
		"its server does not know it":  {func(h *rotatingHarness) { h.forget("b") }, "a1, "},
		"the Node is of another shard": {func(h *rotatingHarness) { h.label("b1", "a") }, "a1, "},
		"a second Node of the instance": {func(h *rotatingHarness) {
			h.Put(h.Informers.Nodes, node("second", "provider-b1"))
		}, "a1, "},
		"the API server has a Ready Node": {func(h *rotatingHarness) {
			h.storeNode(readyNode("b1", corev1.ConditionTrue, h.FakeClock.Now()))
		}, "a1, "},
		"the API server has a Node that is lost again": {func(h *rotatingHarness) {
			h.storeNode(readyNode("b1", corev1.ConditionUnknown, h.FakeClock.Now()))
		}, "a1, "},
		"the user has paused the pool": {func(h *rotatingHarness) {
			controllertest.Change(h.API, "workers", func(pool *v1beta1.NstanceMachinePool) {
				pool.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			})
		}, "a1, "},
		"the user has removed the policy": {func(h *rotatingHarness) {
			controllertest.Change(h.API, "workers", func(pool *v1beta1.NstanceMachinePool) {
				pool.Spec.Remediation, pool.Generation = nil, pool.Generation+1
			})
		}, "a1, "},
	} {
		t.Run(name, func(t *testing.T) {
			h := newRemediatingPool(t, 2)
			h.lose("a1")
			h.Advance(time.Minute)
			h.lose("b1")
			h.Advance(4 * time.Minute)
			assert.Equal(t, "a1, ", h.replaced())
			h.Advance(time.Minute)
			test.lose(h)
			// The caches have not seen what the API server has.
			_, _, err := h.sync()
			require.NoError(t, err)
			assert.Equal(t, test.want, strings.Join([]string{strings.Join(h.shardGroup("a").Spec.Replace, " "), strings.Join(h.shardGroup("b").Spec.Replace, " ")}, ", "))
		})
	}
}

// label sets the label of a shard on the Node of an instance that is lost.
func (h *rotatingHarness) label(id, shard string) {
	h.T.Helper()
	node := readyNode(id, corev1.ConditionUnknown, h.FakeClock.Now().Add(-time.Hour))
	node.Labels = map[string]string{v1beta1.LabelShard: shard}
	h.showNode(node)
}

// Without the policy no Node counts, and what has begun because of the policy is taken back.
func TestUnhealthyNodesWithoutAPolicy(t *testing.T) {
	h := newRemediatingPool(t, 2)
	h.lose("a1", "b1")
	h.annotate(h.annotated("b0"))
	h.Advance(5 * time.Minute)
	assert.Equal(t, "a1, b0 b1", h.replaced())
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { pool.Spec.Remediation = nil })
	assert.Equal(t, ", b0", h.replaced(), "the annotation is another reason")
	state, _ := h.remediating()
	assert.Empty(t, state)
}

// A condition of a Node enqueues the pools that have a policy.
func TestConditionsOfNodesEnqueuePools(t *testing.T) {
	h := newRemediatingPool(t, 2)
	h.report("a", func(group *v1beta1.NstanceShardGroup) { group.Status.ProviderIDs = []string{"provider-a1"} })
	h.settle()
	since := h.FakeClock.Now()
	ready, lost := readyNode("a1", corev1.ConditionTrue, since), readyNode("a1", corev1.ConditionUnknown, since)
	full := ready.DeepCopy()
	full.Status.Conditions = append(full.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue})
	labeled := ready.DeepCopy()
	labeled.Labels = map[string]string{"a": "b"}
	other := readyNode("other", corev1.ConditionUnknown, since)
	enqueued := func(before, after *corev1.Node) bool {
		return len(controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.healthChanged(before, after) })) > 0
	}
	assert.True(t, enqueued(ready, lost), "another status")
	assert.True(t, enqueued(ready, full), "another condition")
	assert.False(t, enqueued(ready, labeled), "nothing else")
	assert.False(t, enqueued(readyNode("other", corev1.ConditionTrue, since), other), "another Node")
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { pool.Spec.Remediation = nil })
	assert.False(t, enqueued(ready, lost), "no policy")
}
