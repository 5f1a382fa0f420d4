// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/faultproxy"
	"nstance.dev/operator/e2e/testcluster"
)

// point is where in a scale-down the operator is killed: before a request of its
// own that never arrives, or after so many that did.
type point struct {
	before *faultproxy.Rule
	after  int
}

func (p point) String() string {
	if p.before != nil {
		return fmt.Sprintf("before %v %s", p.before.Verbs, p.before.Resource)
	}
	return fmt.Sprintf("after %d requests", p.after)
}

// afterAll is where the operator is killed when its scale-down is complete before it
// has made as many requests.
const afterAll = "all"

// points are where the operator is killed: at each of its first requests, and before
// each write that a scale-down needs.
func points() []point {
	var all []point
	for after := range 14 {
		all = append(all, point{after: after})
	}
	for _, write := range []faultproxy.Rule{
		{Verbs: []string{"patch"}, Resource: "nstanceshardgroups"},
		{Verbs: []string{"delete"}, Resource: "machines"},
		{Verbs: []string{"patch", "update"}, Resource: "nstancemachines"},
	} {
		all = append(all, point{before: &write}, point{before: &write})
	}
	return all
}

// Wherever in a scale-down the operator is killed, the selected instance is deleted,
// and no other.
func TestOperatorKilledDuringScaleDown(t *testing.T) {
	const name, rest = "killed", 4
	watchOperator(t)
	random := newRandom(t)
	where := points()
	operator := crashingOperator{env.ReplaceOperator(t)}
	group := createPool(t, name, int32(len(where)+rest))
	left := untilRunning(t, name, len(where)+rest)
	from := env.AuditEnd(t)
	var deleted []string
	reached := map[string]int{}
	for _, i := range random.Perm(len(where)) {
		node := selectNodes(t, group, random, 1)[0]
		deleted = append(deleted, node.Name)
		begin, fault := env.AuditEnd(t), operator.block(where[i])
		require.NoError(t, group.deleteNodes(t.Context(), node))
		reached[operator.untilReached(t, where[i], begin, fault, node.Name)]++
		operator.crash(t)
		untilMachinesDeleted(t, node.Name)
		left = left.without(node.Name)
		if got := getInstances(t, name); !maps.Equal(got, left) {
			t.Fatalf("killed %s: besides %s, %v are lost and %v are new",
				where[i], node.Name, left.without(got.ids()...).ids(), got.without(left.ids()...).ids())
		}
	}
	t.Logf("killed after: %v", reached)
	if late := reached[afterAll]; late > len(where)/4 {
		t.Errorf("%d of %d times the scale-down was complete when the operator was killed", late, len(where))
	}
	untilRunning(t, name, rest)
	expectInstances(t, name, left)
	expectNodeChanges(t, from, name, 0, deleted...)
}

// crashingOperator is an operator that is killed at a point of a scale-down.
type crashingOperator struct{ *testcluster.ProxiedOperator }

// block blocks the request before which the operator is to be killed, if any.
func (o crashingOperator) block(at point) *faultproxy.Fault {
	if at.before == nil {
		return nil
	}
	return o.Proxy.Inject(*at.before)
}

// untilReached returns when the operator is where it is to be killed, or when the
// scale-down is complete. It returns what the last request was.
func (o crashingOperator) untilReached(t *testing.T, at point, from controlplane.Position, fault *faultproxy.Fault, machine string) (last string) {
	t.Helper()
	testcluster.EventuallyEvery(t, 5*time.Millisecond, timeout, "the operator is "+at.String(), func(ctx context.Context) error {
		requests := env.OperatorRequests(t, from)
		last = "the request of the autoscaler"
		if fault == nil {
			requests = requests[:min(len(requests), at.after)]
		}
		if len(requests) > 0 {
			last = requests[len(requests)-1].Action()
		}
		if fault != nil && fault.Met() > 0 {
			last = at.String()
			return nil
		}
		if fault == nil && len(requests) == at.after {
			return nil
		}
		if machineDeleted(ctx, machine) == nil {
			last = afterAll
			return nil
		}
		return errors.New("its last request was " + last)
	})
	if fault != nil && fault.Met() == 0 {
		t.Errorf("the operator made no request %s", at)
	}
	return last
}

// crash kills the operator and starts another one.
func (o crashingOperator) crash(t *testing.T) {
	t.Helper()
	require.NoError(t, o.Process.Kill(t.Context()))
	o.Proxy.Heal()
	env.ReleaseLease(t)
	testcluster.Start(t, o.Process)
}
