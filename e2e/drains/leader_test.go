// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
)

// Whenever the leader is killed, the next one finishes the drain in time, and no
// Pod pays for it.
//
// It runs before the tests that run at the same time.
func TestKilledLeaders(t *testing.T) {
	const name, kills = "killed", 20
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	operators := []nstance.Operator{env.operator, startStandby(t)}
	nodes := createGroup(t, steadyShard, name, kills)
	createNamespace(t, name)
	var pods []*corev1.Pod
	for i, node := range nodes {
		slow := newPod(name, fmt.Sprintf("slow-%d", i), node)
		// It takes its time to end: until nobody keeps it any more.
		slow.Finalizers = []string{keep}
		pods = append(pods, newPod(name, fmt.Sprintf("first-%d", i), node), newPod(name, fmt.Sprintf("second-%d", i), node), slow)
	}
	createPods(t, pods...)

	points := map[string]int{}
	for i, node := range nodes { // the oldest goes first
		leader := awaitLeader(t, operators)
		from := auditEnd(t)
		scale(t, name, kills-1-i)
		eventually(t, "the drain begins", func(context.Context) error {
			if d, known := env.relays[steadyShard].drain(of(node)); !known {
				return fmt.Errorf("drain %+v", d)
			}
			return nil
		})
		point := random.IntN(8)
		reached := awaitRequests(t, from, node, name, i, point)
		if err := leader.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		points[reached]++
		if d, _ := env.relays[steadyShard].drain(of(node)); len(d.Acknowledged) > 0 {
			t.Errorf("instance %s was acknowledged with a Pod on its Node", node)
		}
		patchPod(t, name, fmt.Sprintf("slow-%d", i), `{"metadata":{"finalizers":null}}`)
		if err := leader.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		untilDrained(t, node)
	}
	t.Logf("killed after: %v", points)
	if lost := env.losses.on(nodes...); len(lost) > 0 {
		t.Errorf("Pods were cut off: %v", lost)
	}
	deletions := operatorRequests(t, 0, func(r controlplane.Request) bool {
		return r.Verb == "delete" && r.Resource == "pods"
	})
	if len(deletions) > 0 {
		t.Errorf("operators deleted Pods without asking budgets: %v", deletions)
	}
}

// startStandby runs a second operator until the test ends.
func startStandby(t *testing.T) nstance.Operator {
	t.Helper()
	standby, err := env.Nstance.StartOperator(t.Context(), nstance.Operator{Component: "operator-standby", Flags: electionFlags})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Component(standby.Component).Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return standby
}

// awaitLeader returns the operator that leads.
func awaitLeader(t *testing.T, operators []nstance.Operator) *controlplane.Component {
	t.Helper()
	var leader *controlplane.Component
	eventually(t, "an operator leads", func(ctx context.Context) error {
		for _, o := range operators {
			leads, err := nstance.Metric(ctx, o.URL(), "leader_election_master_status", nil)
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
// drain of a Node since from, or when there is nothing left to do but to wait for
// its slow Pod. It says what the last request was.
func awaitRequests(t *testing.T, from controlplane.Position, node, namespace string, i, count int) (last string) {
	t.Helper()
	slow := fmt.Sprintf("slow-%d", i)
	pods := []string{fmt.Sprintf("first-%d", i), fmt.Sprintf("second-%d", i), slow}
	eventually(t, fmt.Sprintf("the leader has made %d requests", count), func(context.Context) error {
		requests := operatorRequests(t, from, func(r controlplane.Request) bool {
			return r.Resource == "nodes" && r.Name == node ||
				r.Resource == "pods" && (r.Namespace == "" || r.Namespace == namespace && slices.Contains(pods, r.Name))
		})
		last = "the notice"
		for n, r := range requests {
			if n == count {
				return nil
			}
			last = r.Verb + " " + r.Resource
			if r.Subresource != "" {
				last += "/" + r.Subresource
			}
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
