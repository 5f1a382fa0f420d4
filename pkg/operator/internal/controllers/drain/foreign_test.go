// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// report makes the status of a shard's group have these provider ids.
func (h *harness) report(id string, providerIDs ...string) {
	group := &v1beta1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: v1beta1.ShardGroupName("workers", id)}}
	group.Spec.Shard, group.Status.ProviderIDs = v1beta1.Identifier(id), providerIDs
	h.fakes.Put(h.fakes.Informers.Nstance.NstanceShardGroups().Informer(), group)
}

// expectUntouched fails the test if the drain of shard a has changed anything, or is not blocked.
func (h *harness) expectUntouched(message string) {
	h.t.Helper()
	h.expectCordonedBy("n1", "none")
	assert.Zero(h.t, h.count("create pods/eviction"), "evictions")
	h.expectAcknowledged()
	blocked, messages := h.blockedDrains()
	assert.Equal(h.t, 1, blocked)
	assert.Equal(h.t, message+"\n", messages)
}

// A shard server that an attacker controls names the Node of another shard.
func TestNodeWithTheLabelOfAnotherShardIsNotDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newNode("n1")
		node.Labels = map[string]string{v1beta1.LabelShard: "b"}
		h := newHarness(t, node, newPod("web-0", "n1"))
		h.announce("n1", time.Now().Add(time.Hour))
		advance(10 * time.Minute)
		const message = `instance i-n1: shard a reports the provider id "kwok:///n1" of Node n1, which has the label nstance.dev/shard=b`
		h.expectUntouched(message)
		assert.Equal(t, []string{"Warning NodeOfOtherShard " + message + ": no Node is drained"}, h.warnings())

		h.updateNode(func(node *corev1.Node) { node.Labels[v1beta1.LabelShard] = "a" })
		advance(10 * time.Second)
		h.expectCordonedBy("n1", "operator")
		h.expectAcknowledged("i-n1")
	})
}

func TestNodeThatTwoShardsReportIsNotDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.report("a", "kwok:///n1")
		h.report("b", "n1")
		h.announce("n1", time.Now().Add(time.Hour))
		h.announceOn("b", "n1", time.Now().Add(time.Hour))
		advance(10 * time.Minute)
		h.expectUntouched(`instance i-n1: shard a reports the provider id "kwok:///n1", and so does shard b`)
		if blocked, message, _ := h.controller.OfInstance("b", "i-n1"); !blocked {
			t.Errorf("the drain of shard b is not blocked: %q", message)
		}

		h.report("b")
		h.withdrawOn("b", "n1")
		advance(time.Minute)
		h.expectAcknowledged("i-n1")
	})
}

// The label is set by the kubelet or an administrator, and not by a shard: another shard cannot
// block the drains of a Node that has it.
func TestLabelOfTheShardAllowsTheDrainOfADisputedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newNode("n1")
		node.Labels = map[string]string{v1beta1.LabelShard: "a"}
		h := newHarness(t, node, newPod("web-0", "n1"))
		h.report("b", "kwok:///n1")
		h.announce("n1", time.Now().Add(time.Hour))
		advance(10 * time.Second)
		h.expectCordonedBy("n1", "operator")
		h.expectAcknowledged("i-n1")
	})
}

// Evictions end when another shard begins to report the provider id. The Node may be its own.
func TestDrainStopsWhenAnotherShardReportsTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		h.announce("n1", time.Now().Add(time.Hour))
		advance(10 * time.Second)
		h.report("b", "kwok:///n1")
		h.announce("n1", time.Now().Add(time.Hour))
		synctest.Wait()
		h.allowEvictions()
		h.resetRequests()
		advance(10 * time.Minute)
		assert.Zero(t, h.count("create pods/eviction"), "evictions")
		h.expectAcknowledged()
	})
}

// An instance without a Node is not acknowledged as one without a Node if another shard reports it.
func TestDisputedInstanceWithoutANodeIsNotAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.report("a", "kwok:///n1")
		h.report("b", "kwok:///n1")
		h.announce("n1", time.Now().Add(time.Hour))
		advance(10 * time.Minute)
		h.expectAcknowledged()
		assert.Equal(t, []string{`Warning NodeOfOtherShard instance i-n1: shard a reports the provider id "kwok:///n1", and so does shard b: no Node is drained`}, h.warnings())
	})
}
