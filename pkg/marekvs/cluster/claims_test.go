// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/marekvs/children"
)

// reclaiming has 4 nodes, and deletes the claims of removed ones.
func reclaiming(c *v1alpha1.MarekvsCluster) { c.Spec.Nodes, c.Spec.ReclaimPvcs = 4, true }

// untilReclaimable removes node 3, and passes until its claim may be deleted in the next sync,
// which the cache hides until then.
func (h *harness) untilReclaimable() {
	h.t.Helper()
	h.change(sized(3))
	for range 20 {
		h.show()
		require.NoError(h.t, h.Informers.Claims.GetIndexer().Replace(nil, "1"))
		_, err := h.syncStale(h.t.Context())
		require.NoError(h.t, err)
		h.runStatefulSet()
		h.advance(period)
	}
	h.show()
	require.Equal(h.t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase, "%+v", h.cluster().Status)
	require.Len(h.t, h.claims(), 4)
	h.writes()
	h.events()
}

// A claim belongs to a cluster only with all of its labels, and without one of them it is never
// deleted: who takes a label away, keeps the claim. The cache may still have the label.
func TestAClaimWithoutOneOfTheLabelsIsNeverDeleted(t *testing.T) {
	for label := range children.Labels("demo") {
		claim := newClaim(3)
		delete(claim.Labels, label)
		assert.Empty(t, volumesOf(demo(), []*corev1.PersistentVolumeClaim{claim}), label)

		h := newHarness(t, reclaiming)
		h.untilReclaimable()
		claim.UID = ""
		h.builtIn.Remove(claimResource, "ns", claim.Name)
		h.builtIn.Add(claim)
		requeue, err := h.syncStale(t.Context())
		require.NoError(t, err, label)
		assert.Equal(t, controller.StaleRetry, requeue, label)
		h.settle()
		assert.Contains(t, h.claimNames(), claim.Name, label)
		assert.Empty(t, h.events(), label)
	}
	h := newHarness(t, reclaiming)
	h.untilReclaimable()
	h.expect("delete persistentvolumeclaims data-demo-3")
}

// The claim of a removed node that another client deletes first is no error, and no event says
// that the operator deleted it.
func TestAClaimThatWasDeletedByHandIsNotReclaimed(t *testing.T) {
	for name, remove := range map[string]func(*harness){
		"before it is read": func(h *harness) { h.builtIn.Remove(claimResource, "ns", "data-demo-3") },
		"after it was read": func(h *harness) {
			h.builtIn.Fail("delete persistentvolumeclaims data-demo-3", apierrors.NewNotFound(claimResource.GroupResource(), "data-demo-3"))
		},
	} {
		h := newHarness(t, reclaiming)
		h.untilReclaimable()
		remove(h)
		requeue, err := h.syncStale(t.Context())
		require.NoError(t, err, name)
		assert.Equal(t, period, requeue, name)
		assert.Empty(t, h.events(), name)
		status := h.cluster().Status
		assert.Equal(t, v1alpha1.PhaseHealthy, status.Phase, name)
		assert.Equal(t, "True AsExpected", reason(status, v1alpha1.ConditionReconciled), name)
	}
}

// A claim of a node that another client deletes belongs to the StatefulSet controller, which
// creates it with the next Pod. The operator writes nothing, and removes no other node until
// the new Pod has its copies.
func TestTheClaimOfANodeThatWasDeletedByHand(t *testing.T) {
	h := newHarness(t, reclaiming)
	h.builtIn.Remove(claimResource, "ns", "data-demo-1")
	h.expect()
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)

	h.change(sized(3))
	pod := h.pods()[1]
	require.Equal(t, "demo-1", pod.Name)
	h.end(&pod)
	h.runStatefulSet()
	for range int(settle / period) {
		h.pass()
		require.Equal(t, int32(4), *h.set().Spec.Replicas, "the new node has no copies yet")
	}
	assert.Equal(t, []int32{4, 3}, h.sizes(20))
	assert.Equal(t, []string{"data-demo-0", "data-demo-1", "data-demo-2"}, h.claimNames())
}
