// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// A standby writes nothing, and completes what a killed leader has begun: no shard is sent
// a smaller size, and each missing instance is created once. Package faults has leaders
// that are paused instead.
func TestFailover(t *testing.T) {
	const name = "failover"
	standby := env.RunStandby(t)
	if leads(t, standby) {
		t.Fatal("the operator that started second leads")
	}
	env.CreatePoolForTest(t, name, 3)
	env.UntilRunning(t, name, 3)
	if writes := writesOf(t, standby); writes > 0 {
		t.Errorf("the standby has written %v times", writes)
	}

	losses, from := env.NewLossChecker(t, name), env.AuditEnd(t)
	// While a shard does not respond, the leader cannot complete the scaling.
	silent := env.ShardServer(shardIDs[2])
	require.NoError(t, testcluster.FreezeUnlocked(silent, env.Installation.Bucket()))
	thaw := sync.OnceFunc(func() { assert.NoError(t, silent.Thaw()) })
	t.Cleanup(thaw)
	env.Scale(t, name, 30)
	testcluster.Eventually(t, time.Minute, "the leader has begun", func(context.Context) error {
		begun := env.OperatorWrites(t, from, func(w controlplane.Write) bool { return w.Resource == "nstanceshardgroups" })
		if len(begun) == 0 {
			return errors.New("no shard group was written")
		}
		return nil
	})
	testcluster.Kill(t, env.OperatorProcess())
	require.Error(t, env.Running(t.Context(), name, 30), "the scaling was over before the leader was killed")
	env.ReleaseLease(t)
	thaw()
	testcluster.Eventually(t, 2*time.Minute, "the standby completes the scaling", func(ctx context.Context) error {
		return errors.Join(env.SizesAre(ctx, name, 10, 10, 10), env.Running(ctx, name, 30))
	})
	if !leads(t, standby) {
		t.Error("the standby does not report that it leads")
	}
	if seen := losses.ExpectNone(t); seen < len(shardIDs) {
		t.Errorf("%d calls were checked, want at least one of each shard", seen)
	}
	if deletions := env.Requests(t, from, testcluster.IsDeletion); len(deletions) > 0 {
		t.Errorf("%d deletions:%s", len(deletions), testcluster.Describe(deletions))
	}
	// Each instance of these shards is a Node that its server creates.
	created := env.Writes(t, from, func(w controlplane.Write) bool {
		return w.Verb == "create" && w.Resource == "nodes" && w.Code == http.StatusCreated
	})
	require.Len(t, created, 27, "instances that were created")
}

// leads reports whether an operator is the leader.
func leads(t *testing.T, o installation.Operator) bool {
	t.Helper()
	value, err := installation.Metric(t.Context(), o.URL(), "leader_election_master_status", nil)
	require.NoError(t, err)
	return value == 1
}

// writesOf counts an operator's requests to the API server for a change. The audit log
// does not distinguish two operators of one account.
func writesOf(t *testing.T, o installation.Operator) float64 {
	t.Helper()
	var sum float64
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		count, err := installation.Metric(t.Context(), o.URL(), "rest_client_requests_total", map[string]string{"method": method})
		if err != nil {
			t.Fatal(fmt.Errorf("count %s requests: %w", method, err))
		}
		sum += count
	}
	return sum
}
