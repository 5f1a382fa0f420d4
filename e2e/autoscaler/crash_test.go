// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/faultproxy"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

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

// points are where the operator is killed, at random: at its first requests, and before each
// write that a scale-down needs.
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

// crash kills the operator and starts another one.
func (o crashingOperator) crash(t *testing.T) {
	t.Helper()
	require.NoError(t, o.Process.Kill(t.Context()))
	o.Proxy.Heal()
	env.ReleaseLease(t)
	testcluster.Start(t, o.Process)
}
