// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
)

// A standby writes nothing, and finishes what a killed leader has begun.
func TestFailover(t *testing.T) {
	const name = "failover"
	standby, err := env.n.StartOperator(t.Context(), nstance.Operator{Component: "operator-standby"})
	if err != nil {
		t.Fatal(err)
	}
	leader := env.cp.Component(env.operator.Component)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := leader.Start(ctx); err != nil {
			t.Error(err)
		}
		if err := env.cp.Component(standby.Component).Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	if leads(t, standby) {
		t.Fatal("the operator that started second leads")
	}
	createPool(t, name, 3)
	eventually(t, 2*time.Minute, "the pool runs", func(ctx context.Context) error { return running(ctx, name, 3) })
	if writes := writesOf(t, standby); writes > 0 {
		t.Errorf("the standby has written %v times", writes)
	}

	from := auditEnd(t)
	scale(t, name, 30)
	eventually(t, time.Minute, "the leader has begun", func(context.Context) error {
		begun := operatorWrites(t, from, func(w controlplane.Write) bool { return w.Resource == "nstanceshardgroups" })
		if len(begun) == 0 {
			return errors.New("no shard group was written")
		}
		return nil
	})
	if err := leader.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := running(t.Context(), name, 30); err == nil {
		t.Fatal("the scaling was over before the leader was killed")
	}
	eventually(t, 2*time.Minute, "the standby finishes", func(ctx context.Context) error {
		return errors.Join(sizesAre(ctx, name, 10, 10, 10), running(ctx, name, 30))
	})
	if !leads(t, standby) {
		t.Error("the standby does not say that it leads")
	}
}

// leads tells whether an operator holds the lease.
func leads(t *testing.T, o nstance.Operator) bool {
	t.Helper()
	value, err := metric(t.Context(), o.URL(), "leader_election_master_status", nil)
	if err != nil {
		t.Fatal(err)
	}
	return value == 1
}

// writesOf counts an operator's requests to the API server that could change
// something. The audit log cannot tell two operators of one account apart.
func writesOf(t *testing.T, o nstance.Operator) float64 {
	t.Helper()
	var sum float64
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		count, err := metric(t.Context(), o.URL(), "rest_client_requests_total", map[string]string{"method": method})
		if err != nil {
			t.Fatal(fmt.Errorf("count %s requests: %w", method, err))
		}
		sum += count
	}
	return sum
}
