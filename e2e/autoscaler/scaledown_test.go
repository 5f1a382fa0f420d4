// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

// Only the instances that the autoscaler selects are deleted, however many at once. The
// others stay on their shards, until the pool is scaled up again.
func TestScaleDownDeletesSelectedInstances(t *testing.T) {
	t.Parallel()
	const name = "selected"
	size, deletions, rounds := tier.Pick(20, 60), tier.Pick(15, 50), tier.Pick(1, 2)
	watchOperator(t)
	random := newRandom(t)
	group := createPool(t, name, int32(size))
	before := untilRunning(t, name, size)
	for round := range rounds {
		from := env.AuditEnd(t)
		selected := selectNodes(t, group, random, deletions)
		begin := time.Now()
		deleteInBursts(t, group, random, selected)
		left := before.without(namesOfNodes(selected)...)
		untilRunning(t, name, size-deletions)
		t.Logf("round %d: %d deletions in %s, left are %v", round, deletions, time.Since(begin).Round(time.Second/10), left.sizes())

		// The shards are not rebalanced.
		untilResynced(t)
		expectInstances(t, name, left)
		expectNodeChanges(t, from, name, 0, namesOfNodes(selected)...)
		idle := env.AuditEnd(t)
		untilResynced(t)
		expectNothingWritten(t, idle, name)
		expectInstances(t, name, left)

		from = env.AuditEnd(t)
		want := filled(left.sizes(), deletions)
		require.NoError(t, group.increaseSize(t.Context(), int64(deletions)))
		before = untilRunning(t, name, size)
		if got := before.sizes(); !slices.Equal(got, want) {
			t.Errorf("grown to %v, want %v", got, want)
		}
		if lost := left.without(before.ids()...); len(lost) > 0 {
			t.Errorf("scaling up has deleted instances %v", lost.ids())
		}
		expectNodeChanges(t, from, name, deletions)
	}
}

// An additional instance is created on the smallest shard, whichever is listed first.
func TestScaleUpFillsSmallestShard(t *testing.T) {
	t.Parallel()
	const name = "skew"
	watchOperator(t)
	group := createPool(t, name, 7)
	before := untilRunning(t, name, 7) // 3 2 2
	last := shardIDs[len(shardIDs)-1]
	require.NoError(t, group.deleteNodes(t.Context(), nodesNamed(t, before.on(last)...)...))
	left := untilRunning(t, name, 5)
	if got := left.sizes(); !slices.Equal(got, []int{3, 2, 0}) {
		t.Fatalf("left are %v, want none on shard %s", got, last)
	}
	for _, want := range [][]int{{3, 2, 1}, {3, 2, 2}, {3, 3, 2}} {
		from := env.AuditEnd(t)
		require.NoError(t, group.increaseSize(t.Context(), 1))
		grown := untilRunning(t, name, len(left)+1)
		if got := grown.sizes(); !slices.Equal(got, want) || len(left.without(grown.ids()...)) > 0 {
			t.Errorf("%v has grown to %v, want %v", left.sizes(), got, want)
		}
		expectNodeChanges(t, from, name, 1)
		left = grown
	}
}

func newRandom(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(tier.Seeds(t, 1)[0], 0))
}

// selectNodes selects so many different Nodes of a pool at random.
func selectNodes(t testing.TB, group nodeGroup, random *rand.Rand, count int) []*corev1.Node {
	t.Helper()
	nodes, err := group.nodes(t.Context())
	require.NoError(t, err)
	if len(nodes) < count {
		t.Fatalf("the autoscaler sees %d Nodes of %s, want %d at least", len(nodes), group.name, count)
	}
	random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	return nodes[:count]
}

// deleteInBursts deletes Nodes, up to 5 at a time. It waits for some bursts; others
// come while earlier instances are still being deleted.
func deleteInBursts(t *testing.T, group nodeGroup, random *rand.Rand, nodes []*corev1.Node) {
	t.Helper()
	const maxBurst = 5
	for len(nodes) > 0 {
		count := min(1+random.IntN(maxBurst), len(nodes))
		require.NoError(t, group.deleteNodes(t.Context(), nodes[:count]...))
		if random.IntN(2) == 0 {
			untilMachinesDeleted(t, namesOfNodes(nodes[:count])...)
		}
		nodes = nodes[count:]
	}
}

// untilMachinesDeleted waits until Machines, their NstanceMachines and their Nodes are
// deleted.
func untilMachinesDeleted(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		testcluster.Eventually(t, timeout, "Machine "+name+" is deleted", func(ctx context.Context) error { return machineDeleted(ctx, name) })
	}
}

func machineDeleted(ctx context.Context, name string) error {
	return env.MachineDeleted(ctx, name, name)
}

func namesOfNodes(nodes []*corev1.Node) []string {
	var names []string
	for _, node := range nodes {
		names = append(names, node.Name)
	}
	return names
}

// nodesNamed returns the Nodes of these names.
func nodesNamed(t testing.TB, names ...string) []*corev1.Node {
	t.Helper()
	var nodes []*corev1.Node
	for _, name := range names {
		node, err := env.Kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		nodes = append(nodes, node)
	}
	return nodes
}
