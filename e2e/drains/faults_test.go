// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

// Whenever the leader is killed, the next leader finishes the drain in time, and no Pod is deleted
// without being terminated.
//
// It runs before the parallel tests.
func TestLeaderKilledDuringDrain(t *testing.T) {
	const name = "killed"
	kills := tier.Pick(6, 20)
	operators := []installation.Operator{env.Operator, env.RunStandby(t)}
	nodes := createGroup(t, steadyShard, name, int32(kills))
	env.CreateNamespace(t, name)
	var pods []*corev1.Pod
	for i, node := range nodes {
		slow := newPod(name, fmt.Sprintf("slow-%d", i), node)
		// The Pod is deleted when the test removes the finalizer.
		slow.Finalizers = []string{testFinalizer}
		pods = append(pods, newPod(name, fmt.Sprintf("first-%d", i), node), newPod(name, fmt.Sprintf("second-%d", i), node), slow)
	}
	env.CreatePods(t, timeout, pods...)

	// The leaders are killed before the first request of a drain, after the first, and so on.
	const points = 8
	killedAfter := map[string]int{}
	for i, node := range nodes { // the oldest is deleted first
		leader := awaitLeader(t, operators)
		from := env.AuditEnd(t)
		env.Scale(t, name, int32(kills-1-i))
		testcluster.EventuallyEvery(t, 20*time.Millisecond, timeout, "the drain begins", func(context.Context) error {
			if d, known := env.drains[steadyShard].ofInstance(node); !known {
				return fmt.Errorf("drain %+v", d)
			}
			return nil
		})
		last := awaitRequests(t, from, node, name, i, i%points)
		require.NoError(t, leader.Kill(t.Context()))
		env.ReleaseLease(t)
		killedAfter[last]++
		if d, _ := env.drains[steadyShard].ofInstance(node); len(d.Acknowledged) > 0 {
			t.Errorf("instance %s was acknowledged with a Pod on its Node", node)
		}
		patchPod(t, name, fmt.Sprintf("slow-%d", i), `{"metadata":{"finalizers":null}}`)
		require.NoError(t, leader.Start(t.Context()))
		untilDrained(t, node)
	}
	t.Logf("killed after: %v", killedAfter)
	assert.Greater(t, len(killedAfter), 2, "the leaders were killed after the same requests")
	env.forcedDeletions.expectNone(t, nodes...)
	expectNoPodDeletions(t, 0)
}

// expectNoPodDeletions fails the test when operators deleted Pods since from, which bypasses their
// budgets, instead of evicting them
// (https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/).
func expectNoPodDeletions(t *testing.T, from controlplane.Position) {
	t.Helper()
	deletions := env.OperatorRequests(t, from, func(r controlplane.Request) bool {
		return r.Verb == "delete" && r.Resource == "pods"
	})
	assert.Empty(t, deletions, "operators deleted Pods without evicting them:%s", testcluster.Describe(deletions))
}

// awaitLeader returns the operator that leads.
func awaitLeader(t *testing.T, operators []installation.Operator) *controlplane.Component {
	t.Helper()
	var leader *controlplane.Component
	testcluster.Eventually(t, timeout, "an operator leads", func(ctx context.Context) error {
		for _, o := range operators {
			leads, err := installation.Metric(ctx, o.URL(), "leader_election_master_status", nil)
			if err != nil {
				return err
			}
			if leads == 1 {
				leader = env.Component(o.Component)
				return nil
			}
		}
		return errors.New("none leads")
	})
	return leader
}

// awaitRequests returns when the operators have made so many requests for the drain of a Node
// since from, or when they only wait for its slow Pod. It returns the last request.
func awaitRequests(t *testing.T, from controlplane.Position, node, namespace string, i, count int) (last string) {
	t.Helper()
	slow := fmt.Sprintf("slow-%d", i)
	pods := []string{fmt.Sprintf("first-%d", i), fmt.Sprintf("second-%d", i), slow}
	testcluster.EventuallyEvery(t, 20*time.Millisecond, timeout, fmt.Sprintf("the leader has made %d requests", count), func(context.Context) error {
		requests := env.OperatorRequests(t, from, func(r controlplane.Request) bool {
			return r.Resource == "nodes" && r.Name == node ||
				r.Resource == "pods" && (r.Namespace == "" || r.Namespace == namespace && slices.Contains(pods, r.Name))
		})
		last = "the notice"
		for n, r := range requests {
			if n == count {
				return nil
			}
			last = r.Action()
			if isEviction(r) && r.Name == slow && r.Code == http.StatusCreated {
				return nil
			}
		}
		if len(requests) < count {
			return fmt.Errorf("%d", len(requests))
		}
		return nil
	})
	return last
}

// The clocks of the operator and of a server may be wrong by more than a drain may take:
// disruption budgets are respected, and no drain is acknowledged before it is over.
func TestWrongClocks(t *testing.T) {
	if !tier.Full() {
		t.Skip("operator and servers have the clock of the machine: make test-full builds them with one that tests set")
	}
	const wrong = 2 * drainTimeout
	for name, test := range map[string]struct {
		operator, server time.Duration
	}{
		"operator-ahead":  {operator: wrong},
		"operator-behind": {operator: -wrong},
		"server-ahead":    {server: wrong},
		"server-behind":   {server: -wrong},
	} {
		t.Run(name, func(t *testing.T) {
			setClock(t, env.ShardServer(steadyShard), test.server)
			setClock(t, env.OperatorProcess(), test.operator)
			nodes := createGroup(t, steadyShard, name, 2)
			env.CreateNamespace(t, name)
			protected, other := newPod(name, "protected", nodes[0]), newPod(name, "other", nodes[1])
			env.CreatePods(t, timeout, protected, other)
			protect(t, name, protected.Name)

			from := env.AuditEnd(t)
			env.Scale(t, name, 0)
			expectDrained(t, other)
			// The drain is not over while its evictions are rejected, which takes some seconds.
			testcluster.Eventually(t, timeout, "the eviction is rejected several times", func(context.Context) error {
				attempts := evictions(t, from, name, protected.Name)
				if len(attempts) < 5 {
					return fmt.Errorf("%d attempts", len(attempts))
				}
				for _, attempt := range attempts {
					if attempt.Code != http.StatusTooManyRequests {
						t.Fatalf("an attempt has status %d", attempt.Code)
					}
				}
				return nil
			})
			blocked, _ := env.drains[steadyShard].ofInstance(nodes[0])
			assert.Empty(t, blocked.Acknowledged, "the blocked drain was acknowledged")
			assert.Zero(t, blocked.Deleted, "the instance of the blocked drain was deleted")
			expectClocks(t, blocked, test.operator, test.server)

			unprotect(t, name, protected.Name)
			expectDrained(t, protected)
			env.forcedDeletions.expectNone(t, nodes...)
		})
	}
}

// setClock restarts a component with a clock that is ahead, until the end of the test.
func setClock(t *testing.T, component *controlplane.Component, ahead time.Duration) {
	t.Helper()
	if ahead == 0 {
		return
	}
	restart := func(environment []string) {
		require.NoError(t, component.Stop(context.WithoutCancel(t.Context())))
		component.Env = environment
		testcluster.Start(t, component)
	}
	before := component.Env
	t.Cleanup(func() { restart(before) })
	restart(append(append([]string{}, before...), controlplane.Clock(ahead)...))
}

// expectDrained waits until the Node of a Pod is drained and its instance deleted, and
// checks each acknowledgement.
func expectDrained(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	testcluster.Eventually(t, timeout, "the Node of Pod "+pod.Name+" is drained", func(context.Context) error {
		d, known := env.drains[steadyShard].ofInstance(pod.Spec.NodeName)
		if !known || len(d.Acknowledged) == 0 || d.Deleted.IsZero() {
			return fmt.Errorf("drain %+v", d)
		}
		for _, a := range d.Acknowledged {
			for _, left := range a.Pods {
				if evictable(&left) {
					t.Fatalf("the drain of %s was acknowledged while Pod %s was on its Node", d.Instance, left.Name)
				}
			}
		}
		return nil
	})
}

// expectClocks checks that the processes have the expected clocks: the leader writes its time to
// the Lease, and the server its time to the notice of a drain.
func expectClocks(t *testing.T, d drain, operator, server time.Duration) {
	t.Helper()
	testcluster.Eventually(t, timeout, "the leader renews its Lease with its clock", func(ctx context.Context) error {
		lease, err := env.Kube.CoordinationV1().Leases(installation.Namespace).Get(ctx, "nstance-operator-leader-election", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil {
			return errors.New("it has no time")
		}
		return isAhead("the Lease", lease.Spec.RenewTime.Time, time.Now(), operator)
	})
	assert.NoError(t, isAhead("the deadline", d.DeleteAt, d.Reported.Add(drainTimeout), server))
}

func isAhead(what string, at, now time.Time, ahead time.Duration) error {
	if off := at.Sub(now) - ahead; off.Abs() > time.Minute {
		return fmt.Errorf("%s is %s ahead, want %s", what, at.Sub(now), ahead)
	}
	return nil
}
