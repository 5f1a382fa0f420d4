// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// Claims are kept for the time that the user sets, a day by default, whatever the nodes report.
func TestClaimsAreKeptForATime(t *testing.T) {
	for name, c := range map[string]struct {
		seconds int32
		kept    time.Duration
	}{
		"an hour":     {3600, time.Hour},
		"the default": {0, 24 * time.Hour},
	} {
		h := newHarness(t, reclaiming)
		h.change(func(cluster *v1alpha1.MarekvsCluster) {
			cluster.Spec.ReclaimAfterSeconds, cluster.Spec.Nodes = c.seconds, 3
		})
		assert.Equal(t, []int32{4, 3}, h.sizes(20), name)
		removed, ok := timeOf(h.set(), v1alpha1.AnnotationLastScaleDown)
		require.True(t, ok)
		h.advance(c.kept - h.clock.Now().Sub(removed) - time.Second)
		h.pass()
		assert.Len(t, h.claims(), 4, name)
		h.pass()
		assert.Len(t, h.claims(), 3, name)
	}
}

// While a node gets copies, no node is removed, however long that takes and however many rounds
// begin.
func TestARemovalWaitsWhileCopiesMove(t *testing.T) {
	h := newHarness(t, func(c *v1alpha1.MarekvsCluster) { c.Spec.Nodes = 4 })
	h.change(sized(3))
	for range 60 {
		h.moved++
		h.pass()
	}
	assert.Equal(t, int32(4), *h.set().Spec.Replicas)
	progressing := meta.FindStatusCondition(h.cluster().Status.Conditions, v1alpha1.ConditionProgressing)
	assert.Equal(t, v1alpha1.ReasonRepairing, progressing.Reason)
	assert.Equal(t, []int32{4, 3}, h.sizes(20))
}

// Nothing else has the data of a node, so every node is kept, and every claim.
func TestNoNodeIsRemovedWithReplicationFactor1(t *testing.T) {
	h := newHarness(t, func(c *v1alpha1.MarekvsCluster) { reclaiming(c); c.Spec.ReplicationFactor = 1 })
	h.builtIn.Add(newClaim(4))
	for range 20 {
		h.pass()
	}
	assert.Len(t, h.claims(), 5)
	h.change(sized(3))
	for range 60 {
		h.pass()
	}
	assert.Equal(t, int32(4), *h.set().Spec.Replicas)
	assert.Len(t, h.claims(), 5)
	assert.Equal(t, v1alpha1.PhaseBlocked, h.cluster().Status.Phase)
	blocked := meta.FindStatusCondition(h.cluster().Status.Conditions, v1alpha1.ConditionScaleDownBlocked)
	assert.Equal(t, metav1.ConditionTrue, blocked.Status)
	assert.Equal(t, v1alpha1.ReasonSingleCopy, blocked.Reason)
}

// kubectl rollout restart of the StatefulSet writes an annotation into its template, which no apply
// of the operator removes. The Pods restart one at a time, each when the others have every copy.
func TestARestartOfTheStatefulSetIsGated(t *testing.T) {
	h := newHarness(t, nil)
	partition := func() int32 { return *h.set().Spec.UpdateStrategy.RollingUpdate.Partition }
	require.Equal(t, int32(3), partition())
	set := h.set()
	set.Spec.Template.Annotations = map[string]string{"kubectl.kubernetes.io/restartedAt": "2030-01-01T00:00:00Z"}
	h.builtIn.Update(setResource, set)
	set = h.set()
	set.Status.UpdateRevision, set.Status.ObservedGeneration = "restarted", set.Generation
	h.builtIn.Update(setResource, set)
	h.under = 1
	for range 5 {
		h.show()
		_, err := h.syncStale(t.Context())
		require.NoError(t, err)
		assert.Equal(t, int32(3), partition(), "partitions have too few owners")
		h.advance(period)
	}
	h.under = 0
	h.show()
	_, err := h.syncStale(t.Context())
	require.NoError(t, err)
	assert.Equal(t, int32(2), partition(), "the highest ordinal first")
}

// So is a restart by the spec: the template gets the time, and no Pod is restarted before the gates are open.
func TestARestartByTheSpecIsGated(t *testing.T) {
	h := newHarness(t, nil)
	at := h.clock.Now()
	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.RestartedAt = ptr.To(metav1.NewTime(at)) })
	h.expect(applySet, writeStatus)
	set := h.set()
	assert.Equal(t, at.Format(time.RFC3339), set.Spec.Template.Annotations[v1alpha1.AnnotationRestartedAt])
	assert.Equal(t, ptr.To[int32](3), set.Spec.UpdateStrategy.RollingUpdate.Partition)
	set.Status.UpdateRevision, set.Status.ObservedGeneration = "restarted", set.Generation
	h.builtIn.Update(setResource, set)
	for _, step := range []struct {
		under     int64
		partition int32
	}{{1, 3}, {1, 3}, {0, 2}} {
		h.under = step.under
		_, err := h.syncFresh()
		require.NoError(t, err)
		assert.Equal(t, step.partition, *h.set().Spec.UpdateStrategy.RollingUpdate.Partition)
		h.advance(period)
	}
	h.writes()
	_, err := h.syncFresh()
	require.NoError(t, err)
	assert.NotContains(t, h.writes(), applySet, "once for each time")
}
