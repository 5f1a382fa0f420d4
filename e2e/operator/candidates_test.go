// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// candidatesPool is the pool of TestCandidates.
const candidatesPool = "candidates"

// A pool of two zones has a base, spot instances, and a fallback for the zone that has no spot
// instances. A server that is killed while it falls back creates no instance too many. When spot
// instances are to be had again, instances that are created then are spot instances, those that run
// stay, and only the instances of a candidate that is removed are replaced.
func TestCandidates(t *testing.T) {
	// No other test must need the server while it does not run.
	const preferred, fallback = "r7i.2xlarge", "r7i.4xlarge"
	name := candidatesPool
	shards := shardIDs[1:]
	scarce := shards[1]
	env.SetQuota(t, scarce, map[string]int{preferred + "/" + string(v1beta1.MarketSpot): 1})
	end := func() { env.SetQuota(t, scarce, nil) }
	t.Cleanup(end)

	pool := testcluster.NewNstanceMachinePool(name, shards...)
	pool.Spec.InstanceType = ""
	pool.Spec.Candidates = []v1beta1.Candidate{
		{Name: "base", InstanceType: preferred, Market: v1beta1.MarketStandard, MaxReplicas: ptr.To(intstr.FromInt32(2))},
		{Name: "spot", InstanceType: preferred, Market: v1beta1.MarketSpot},
		{Name: "fallback", InstanceType: fallback, Market: v1beta1.MarketStandard},
	}
	createWith(t, pool, 8)
	require.NoError(t, env.ShardServer(scarce).Kill(t.Context()))
	testcluster.Start(t, env.ShardServer(scarce))
	env.UntilRunning(t, name, 8)
	untilUsed(t, shards[0], map[string]int32{"base": 1, "spot": 3, "fallback": 0})
	untilUsed(t, scarce, map[string]int32{"base": 1, "spot": 1, "fallback": 2})
	untilPreferred(t, metav1.ConditionFalse, v1beta1.ReasonFallback)
	assert.Equal(t, map[string]int{preferred: 6, fallback: 2}, nodeTypes(t), "the Nodes")
	before := env.NodeNames(t, name)

	end()
	env.Scale(t, name, 10)
	env.UntilRunning(t, name, 10)
	untilUsed(t, shards[0], map[string]int32{"base": 1, "spot": 4, "fallback": 0})
	untilUsed(t, scarce, map[string]int32{"base": 1, "spot": 2, "fallback": 2})
	untilPreferred(t, metav1.ConditionFalse, v1beta1.ReasonFallback)
	assert.Subset(t, env.NodeNames(t, name), before, "no instance is replaced")

	stays := map[string]bool{}
	nodes, err := env.Nodes(t.Context(), name)
	require.NoError(t, err)
	for _, node := range nodes {
		stays[node.Name] = node.Labels[corev1.LabelInstanceTypeStable] == preferred
	}
	maps.DeleteFunc(stays, func(_ string, stays bool) bool { return !stays })
	_, err = env.PatchNstanceMachinePool(t.Context(), name, fmt.Sprintf(
		`{"spec":{"candidates":[{"name":"base","instanceType":%q,"market":"Standard","maxReplicas":2},{"name":"spot","instanceType":%q,"market":"Spot"}]}}`,
		preferred, preferred))
	require.NoError(t, err)
	untilUsed(t, scarce, map[string]int32{"base": 1, "spot": 4})
	untilPreferred(t, metav1.ConditionTrue, v1beta1.ReasonPreferred)
	env.UntilRunning(t, name, 10)
	assert.Equal(t, map[string]int{preferred: 10}, nodeTypes(t), "the Nodes")
	assert.Subset(t, env.NodeNames(t, name), slices.Collect(maps.Keys(stays)), "only the instances of the removed candidate are replaced")
}

// untilUsed waits until a shard group reports so many instances of its candidates.
func untilUsed(t *testing.T, shard string, want map[string]int32) {
	t.Helper()
	testcluster.Eventually(t, 3*time.Minute, "the instances of "+shard+" are of the candidates", func(ctx context.Context) error {
		group, err := env.ShardGroup(ctx, candidatesPool, shard)
		if err != nil {
			return err
		}
		got := map[string]int32{}
		for _, use := range group.Status.Candidates {
			got[use.Name] = use.Replicas
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("the shard group has %v, want %v", group.Status.Candidates, want)
		}
		return nil
	})
}

func untilPreferred(t *testing.T, status metav1.ConditionStatus, reason string) {
	t.Helper()
	testcluster.Eventually(t, time.Minute, "the pool says whether its instances are preferred", func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, candidatesPool)
		if err != nil {
			return err
		}
		return testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionPreferredInstances, status, reason)
	})
}

// nodeTypes returns how many Nodes of a pool have each instance type.
func nodeTypes(t *testing.T) map[string]int {
	t.Helper()
	nodes, err := env.Nodes(t.Context(), candidatesPool)
	require.NoError(t, err)
	types := map[string]int{}
	for i := range nodes {
		types[nodes[i].Labels[corev1.LabelInstanceTypeStable]]++
	}
	return types
}
