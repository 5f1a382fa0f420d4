// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/nstance"
)

// Whichever instances the autoscaler chooses, in however quick succession, those
// go and no others. What is left stays where it is, until the pool grows again.
func TestVictims(t *testing.T) {
	t.Parallel()
	const name, size, rounds, victims = "victims", 60, 2, 50
	watchOperator(t)
	random := newRandom(t)
	group := createPool(t, name, size)
	before := untilRunning(t, name, size)
	for round := range rounds {
		from := auditEnd(t)
		chosen := chooseNodes(t, group, random, victims)
		begin := time.Now()
		inBursts(t, group, random, chosen)
		left := before.without(namesOfNodes(chosen)...)
		untilRunning(t, name, size-victims)
		t.Logf("round %d: %d victims in %s, left are %v", round, victims, time.Since(begin).Round(time.Second/10), left.sizes())

		// Nobody makes anything even.
		untilLookedAgain(t)
		expectInstances(t, name, left)
		expectNodeChanges(t, from, name, 0, namesOfNodes(chosen)...)
		quiet := auditEnd(t)
		untilLookedAgain(t)
		expectNothingWritten(t, quiet, name)
		expectInstances(t, name, left)

		from = auditEnd(t)
		want := filled(left.sizes(), victims)
		if err := group.increaseSize(t.Context(), victims); err != nil {
			t.Fatal(err)
		}
		before = untilRunning(t, name, size)
		if got := before.sizes(); !slices.Equal(got, want) {
			t.Errorf("grown to %v, want %v", got, want)
		}
		if lost := left.without(before.ids()...); len(lost) > 0 {
			t.Errorf("growth has ended instances %v", lost.ids())
		}
		expectNodeChanges(t, from, name, victims)
	}
}

// One instance more fills the smallest shard, whichever is listed first.
func TestSkewIsFilled(t *testing.T) {
	t.Parallel()
	const name = "skew"
	watchOperator(t)
	group := createPool(t, name, 7)
	before := untilRunning(t, name, 7) // 3 2 2
	last := shardIDs[len(shardIDs)-1]
	if err := group.deleteNodes(t.Context(), nodesNamed(t, before.on(last)...)...); err != nil {
		t.Fatal(err)
	}
	left := untilRunning(t, name, 5)
	if got := left.sizes(); !slices.Equal(got, []int{3, 2, 0}) {
		t.Fatalf("left are %v, want all of shard %s gone", got, last)
	}
	for _, want := range [][]int{{3, 2, 1}, {3, 2, 2}, {3, 3, 2}} {
		from := auditEnd(t)
		if err := group.increaseSize(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
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
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// chooseNodes chooses so many different Nodes of a pool at random.
func chooseNodes(t testing.TB, group nodeGroup, random *rand.Rand, count int) []*corev1.Node {
	t.Helper()
	nodes, err := group.nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes) < count {
		t.Fatalf("the autoscaler sees %d Nodes of %s, want %d at least", len(nodes), group.name, count)
	}
	random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	return nodes[:count]
}

// inBursts has Nodes go, up to 5 at a time. Of some bursts the end is waited for,
// others come while earlier victims are still going.
func inBursts(t *testing.T, group nodeGroup, random *rand.Rand, nodes []*corev1.Node) {
	t.Helper()
	const most = 5
	for len(nodes) > 0 {
		count := min(1+random.IntN(most), len(nodes))
		if err := group.deleteNodes(t.Context(), nodes[:count]...); err != nil {
			t.Fatal(err)
		}
		if random.IntN(2) == 0 {
			untilMachinesGone(t, namesOfNodes(nodes[:count])...)
		}
		nodes = nodes[count:]
	}
}

// untilMachinesGone waits until Machines, and what stands for them with us, are
// gone.
func untilMachinesGone(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		eventually(t, "Machine "+name+" is gone", func(ctx context.Context) error { return machineGone(ctx, name) })
	}
}

func machineGone(ctx context.Context, name string) error {
	_, err := env.capi.Machines(nstance.Namespace).Get(ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return errors.Join(errors.New("the Machine is there"), err)
	}
	_, err = nstanceMachines().Get(ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return errors.Join(errors.New("the NstanceMachine is there"), err)
	}
	_, err = env.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return errors.Join(fmt.Errorf("Node %s is there", name), err)
	}
	return nil
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
		node, err := env.kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, node)
	}
	return nodes
}
