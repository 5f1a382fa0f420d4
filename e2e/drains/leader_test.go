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

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

// Whenever the leader is killed, the next one finishes the drain in time, and no
// Pod is deleted without being terminated.
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
		// It terminates when the test removes the finalizer.
		slow.Finalizers = []string{testFinalizer}
		pods = append(pods, newPod(name, fmt.Sprintf("first-%d", i), node), newPod(name, fmt.Sprintf("second-%d", i), node), slow)
	}
	createPods(t, pods...)

	// The leaders are killed after none of the requests of a drain, after one, and so on.
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

// expectNoPodDeletions fails the test when operators deleted Pods since from, which
// bypasses their budgets, instead of evicting them.
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

// awaitRequests returns when the operators have made so many requests for the
// drain of a Node since from, or when they only wait for its slow Pod. It returns
// what the last request was.
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
