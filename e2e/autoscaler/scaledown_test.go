// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/faultproxy"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

// Only the instances that the autoscaler selects are deleted, however many at once. The other
// instances stay on their shards, until the pool is scaled up again.
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

// deleteInBursts deletes Nodes, up to 5 at a time. It waits for some bursts; the other bursts
// begin while earlier instances are still being deleted.
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

// point is the request of a scale-down that never arrives, because the operator is killed
// before.
type point struct{ faultproxy.Rule }

func (p point) String() string {
	if p.Resource == "" {
		return fmt.Sprintf("after %d requests", p.After)
	}
	return fmt.Sprintf("before %v %s", p.Verbs, p.Resource)
}

// scaleDownWrites are the writes that a scale-down needs.
var scaleDownWrites = []faultproxy.Rule{
	{Verbs: []string{"patch"}, Resource: "nstanceshardgroups"},
	{Verbs: []string{"delete"}, Resource: "machines"},
	{Verbs: []string{"patch", "update"}, Resource: "nstancemachines"},
}

// points returns the requests before which the operator is killed, at random: at its first
// requests, and before each write that a scale-down needs.
func points(random *rand.Rand) []point {
	const positions = 14
	var all []point
	for _, after := range random.Perm(positions)[:tier.Pick(6, positions)] {
		all = append(all, point{faultproxy.Rule{
			Verbs: []string{"get", "list", "create", "update", "patch", "delete"}, Except: "leases", After: after,
		}})
	}
	for _, write := range scaleDownWrites {
		for range tier.Pick(1, 2) {
			all = append(all, point{write})
		}
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// Wherever in a scale-down the operator is killed, the selected instance is deleted,
// and no other.
func TestOperatorKilledDuringScaleDown(t *testing.T) {
	const name, rest = "killed", 2
	watchOperator(t)
	random := newRandom(t)
	where := points(random)
	operator := crashingOperator{env.ReplaceOperator(t)}
	group := createPool(t, name, int32(len(where)+rest))
	left := untilRunning(t, name, len(where)+rest)
	from := env.AuditEnd(t)
	var deleted []string
	for _, at := range where {
		node := selectNodes(t, group, random, 1)[0]
		deleted = append(deleted, node.Name)
		fault := operator.Proxy.Inject(at.Rule)
		require.NoError(t, group.deleteNodes(t.Context(), node))
		operator.untilReached(t, at, fault, node.Name)
		operator.crash(t)
		untilMachinesDeleted(t, node.Name)
		left = left.without(node.Name)
		if got := getInstances(t, name); !maps.Equal(got, left) {
			t.Fatalf("killed %s: besides %s, %v are lost and %v are new",
				at, node.Name, left.without(got.ids()...).ids(), got.without(left.ids()...).ids())
		}
	}
	untilRunning(t, name, rest)
	expectInstances(t, name, left)
	expectNodeChanges(t, from, name, 0, deleted...)
}

// crashingOperator is an operator that is killed at a point of a scale-down.
type crashingOperator struct{ *testcluster.ProxiedOperator }

// untilReached returns when the operator waits for the response to the request before which
// it is to be killed, or when the scale-down is complete, which takes fewer requests.
func (o crashingOperator) untilReached(t *testing.T, at point, fault *faultproxy.Fault, machine string) {
	t.Helper()
	testcluster.Eventually(t, timeout, "the operator is "+at.String(), func(ctx context.Context) error {
		if fault.Met() > 0 {
			return nil
		}
		return machineDeleted(ctx, machine)
	})
	t.Logf("killed %s; the scale-down was complete: %t", at, fault.Met() == 0)
	if fault.Met() == 0 && (at.Resource != "" || at.After < len(scaleDownWrites)) {
		t.Errorf("the operator made no request %s", at)
	}
}

// crash kills the operator and starts another.
func (o crashingOperator) crash(t *testing.T) {
	t.Helper()
	require.NoError(t, o.Process.Kill(t.Context()))
	o.Proxy.Heal()
	env.ReleaseLease(t)
	testcluster.Start(t, o.Process)
}

// When a shard has no more instances of a type, no other instance is deleted: the
// autoscaler cancels the shortfall, and only the pending instance is removed.
func TestShortfallIsCancelled(t *testing.T) {
	t.Parallel()
	const name = "shortfall"
	watchOperator(t)
	group := createPool(t, name, 3, func(_ *clusterv1.MachinePool, pool *v1beta1.NstanceMachinePool) {
		pool.Spec.InstanceType = scarceType
	})
	untilRunning(t, name, 3)
	from := env.AuditEnd(t)
	require.NoError(t, group.increaseSize(t.Context(), 3))
	// Without the shortfall, the last of equal shards would shrink.
	scarce := shardIDs[0]
	testcluster.Eventually(t, timeout, "shard "+scarce+" reports its quota", func(ctx context.Context) error {
		shardGroup, err := env.ShardGroup(ctx, name, scarce)
		if err != nil {
			return err
		}
		ready := meta.FindStatusCondition(shardGroup.Status.Conditions, v1beta1.ConditionReady)
		if ready == nil || ready.Reason != v1beta1.ReasonProviderError || !strings.Contains(ready.Message, "quota") {
			return fmt.Errorf("condition Ready of its shard group is %+v", ready)
		}
		return nil
	})
	var before []string
	testcluster.Eventually(t, timeout, "the other shards have their instances", func(ctx context.Context) error {
		nodes, err := group.nodes(ctx)
		if before = namesOfNodes(nodes); err == nil && len(nodes) != 5 {
			err = fmt.Errorf("there are %d Nodes", len(nodes))
		}
		return err
	})

	if err := group.decreaseTargetSize(t.Context(), 2); err == nil {
		t.Error("the autoscaler itself cancels existing instances")
	}
	require.NoError(t, group.decreaseTargetSize(t.Context(), 1))
	after := untilRunning(t, name, 5)
	if !slices.Equal(after.ids(), before) {
		t.Errorf("of the Nodes %v, %v are left", before, after.ids())
	}
	if sizes, err := sizesOf(t.Context(), name); err != nil || fmt.Sprint(sizes) != "[1 2 2]" {
		t.Errorf("the sizes are %v, want [1 2 2] (error %v)", sizes, err)
	}
	expectNodeChanges(t, from, name, 2)
}
