// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

const groupC = "apply nstanceshardgroups workers--c"

// withBase is a pool with so many instances, or percent, of the market Standard, and others of Spot.
func withBase(maximum intstr.IntOrString, shards ...v1beta1.Identifier) *v1beta1.NstanceMachinePool {
	pool := newPool(shards...)
	pool.Spec.InstanceType = ""
	pool.Spec.Candidates = []v1beta1.Candidate{
		{Name: "base", Market: v1beta1.MarketStandard, MaxReplicas: &maximum},
		{Name: "spot", Market: v1beta1.MarketSpot},
		{Name: "fallback", Market: v1beta1.MarketStandard, InstanceType: "m7i.large"},
	}
	return pool
}

// expectShares compares the shares of the first candidate.
func (h *harness) expectShares(want map[string]int32) {
	h.T.Helper()
	for id, share := range want {
		candidates := h.shardGroup(id).Spec.Candidates
		if assert.Len(h.T, candidates, 3, id) {
			assert.Equal(h.T, ptr.To(share), candidates[0].MaxReplicas, id)
			assert.Nil(h.T, candidates[1].MaxReplicas, id)
		}
	}
}

// A shard group gets its share in the write that gives it the size, and a share that stays costs no
// write.
func TestSharesAreWrittenWithTheSizes(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 0, "b": 0, "c": 0}), withBase(intstr.FromInt32(2), "a", "b", "c"))
	h.scale(3)
	h.expect(groupA, groupB, groupC)
	h.expectShares(map[string]int32{"a": 1, "b": 1, "c": 0})
	for _, id := range []string{"a", "b", "c"} {
		h.report(id, func(g *v1beta1.NstanceShardGroup) { ready(g, "i-"+id) })
	}
	h.expect(poolSpec, poolStatus)
	h.Show()
	h.scale(4)
	h.expect(poolStatus, groupA)
	h.Show()
	h.expectShares(map[string]int32{"a": 1, "b": 1, "c": 0})

	h.updatePool(func(pool *v1beta1.NstanceMachinePool) {
		pool.Spec.Candidates[0].MaxReplicas = ptr.To(intstr.FromString("75%"))
	})
	expectGroups := func(want ...string) {
		t.Helper()
		got, _, err := h.sync()
		require.NoError(t, err)
		assert.Equal(t, want, slices.DeleteFunc(got, func(write string) bool { return !strings.Contains(write, "shardgroups") }))
		h.Show()
	}
	expectGroups(groupC)
	h.expectShares(map[string]int32{"a": 1, "b": 1, "c": 1})
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { pool.Spec.Candidates = nil })
	expectGroups(groupA, groupB, groupC)
	expectGroups()
	assert.Empty(t, h.shardGroup("a").Spec.Candidates)
	assert.Nil(t, meta.FindStatusCondition(h.pool().Status.Conditions, v1beta1.ConditionPreferredInstances))
}

// During a scale-down in steps the shares follow the sizes of the step, not the replicas.
func TestSharesFollowTheStepsOfAScaleDown(t *testing.T) {
	pool := withBase(intstr.FromString("50%"), "a", "b")
	pool.Spec.ScaleDown = &v1beta1.ScaleDownGuards{MaxInFlight: ptr.To(intstr.FromInt32(2))}
	seen := observed(pool, 2, ready(newShardGroup(pool, "a", 4)), ready(newShardGroup(pool, "b", 4)))
	for i := range seen.shards {
		seen.shards[i].reported = &shard.Group{Key: "workers", Size: 4, ActualSize: 4}
	}
	seen.guarded = &guarded{stable: 2}
	d := planOf(seen)
	require.Equal(t, []int32{3, 3}, d.sizes)
	for i, want := range []int32{2, 1} {
		assert.Equal(t, want, *d.apply[i].spec.Candidates[0].MaxReplicas)
	}
}

// used is the group of a server with these numbers of the three candidates.
func used(shares int32, use ...int32) *shard.Group {
	group := &shard.Group{Key: "workers", KnownSettings: 1025}
	group.Candidates = []shard.Candidate{{Name: "base", MaxInstances: &shares}, {Name: "spot"}, {Name: "fallback"}}
	for i, n := range use {
		group.Size += n
		group.CandidateUse = append(group.CandidateUse, shard.CandidateUse{
			Name: group.Candidates[i].Name, Market: []string{"Standard", "Spot", "Standard"}[i], InstanceType: "m7i.large", Instances: n,
		})
	}
	return group
}

// A report enqueues the pool, which has the condition, an event for each change, and is ready all the
// time.
func TestThePoolReportsFallbacks(t *testing.T) {
	pool := withBase(intstr.FromInt32(1), "a", "b")
	h := newHarness(t, withGroups(map[string]*shard.Group{"a": used(1, 1, 2, 0), "b": used(0, 0, 3, 0)}), pool)
	h.scale(6)
	h.expect(groupA, groupB)
	h.Show()
	report := func(id string) { h.report(id, func(g *v1beta1.NstanceShardGroup) { ready(g, "i-"+id) }) }
	report("a")
	report("b")
	condition := func() metav1.Condition {
		h.T.Helper()
		_, _, err := h.sync()
		require.NoError(t, err)
		h.Show()
		assert.True(t, meta.IsStatusConditionTrue(h.pool().Status.Conditions, v1beta1.ConditionReady))
		return *meta.FindStatusCondition(h.pool().Status.Conditions, v1beta1.ConditionPreferredInstances)
	}
	assert.Equal(t, v1beta1.ReasonPreferred, condition().Reason)
	h.Events()

	fallback := used(0, 0, 1, 2)
	fallback.CandidateUse[1].Unavailable = "InsufficientInstanceCapacity"
	enqueued := func() int {
		return len(controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.groupChanged("b", "workers") }))
	}
	enqueued()
	h.Fake.SetGroup("b", *fallback)
	assert.Equal(t, 1, enqueued())
	assert.Zero(t, enqueued(), "without a change")
	const message = "2 of 6 instances are m7i.large Standard (candidate fallback): b has no m7i.large Spot: InsufficientInstanceCapacity"
	got := condition()
	assert.Equal(t, metav1.ConditionFalse, got.Status)
	assert.Equal(t, message, got.Message)
	h.ExpectEvents("Warning Fallback " + message)
	condition()
	h.ExpectEvents()
	h.Fake.SetGroup("b", *used(0, 0, 3, 0))
	assert.Equal(t, metav1.ConditionTrue, condition().Status)
	h.ExpectEvents("Normal Preferred all instances are of the candidates that they should be of")
}
