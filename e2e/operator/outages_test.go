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
	"nstance.dev/operator/pkg/testing/tier"
)

// outage keeps a shard from responding, until end is called or the test is over.
type outage func(*testing.T, *controlplane.Component) (end func())

func down(t *testing.T, shard *controlplane.Component) (end func()) {
	t.Helper()
	require.NoError(t, shard.Kill(t.Context()))
	end = sync.OnceFunc(func() { testcluster.Start(t, shard) })
	t.Cleanup(end)
	return end
}

func hanging(t *testing.T, shard *controlplane.Component) (end func()) {
	t.Helper()
	require.NoError(t, testcluster.FreezeUnlocked(shard, env.Installation.Bucket()))
	end = sync.OnceFunc(func() { assert.NoError(t, shard.Thaw()) })
	t.Cleanup(end)
	return end
}

// interrupted is a change during which a shard does not respond.
type interrupted struct {
	name string
	// change is made when the outage has begun.
	change func(*testing.T)
	// waits waits until the objects report that they wait for the shard.
	waits func(*testing.T)
	// completes waits until the change is complete, after the end of the outage.
	completes func(*testing.T)
}

// interrupt makes changes during one outage of a shard.
func (o outage) interrupt(t *testing.T, shard string, changes ...interrupted) {
	t.Helper()
	end := o(t, env.ShardServer(shard))
	for _, c := range changes {
		c.change(t)
	}
	for _, c := range changes {
		t.Run(c.name+" waits", c.waits)
	}
	end()
	for _, c := range changes {
		t.Run(c.name+" completes", c.completes)
	}
}

// Changes wait for a shard that is down, and are completed when it is up again.
func TestChangesWhileAShardIsDown(t *testing.T) {
	const (
		deleted, deletedPool = "deleted-down", "deleted-down-pool"
		leaving, scaled      = "leaving-down", "outage"
		created              = "unreachable"
	)
	shard := shardIDs[2]
	pools := map[string]int32{deleted: 6, leaving: 6, scaled: 6}
	if tier.Full() {
		pools[deletedPool] = 6
	}
	runPools(t, pools)
	t.Cleanup(func() { env.DeletePools(t, leaving, scaled, created) })
	changes := []interrupted{
		interruptedDeletion(deleted, shard, deleteMachinePool),
		interruptedRemoval(leaving, shard),
		interruptedScaling(t, scaled, shard),
		interruptedCreation(created, shard),
	}
	if tier.Full() {
		changes = append(changes, interruptedDeletion(deletedPool, shard, deleteNstanceMachinePool))
	}
	outage(down).interrupt(t, shard, changes...)
}

// Changes wait for a shard that accepts connections and does not respond, as for a shard that is
// down.
func TestChangesWhileAShardHangs(t *testing.T) {
	const deleted, recreated = "deleted-hanging", "recreated-hanging"
	shard := shardIDs[0]
	runPools(t, map[string]int32{deleted: 6, recreated: 3})
	t.Cleanup(func() { env.DeletePools(t, recreated) })
	outage(hanging).interrupt(t, shard,
		interruptedDeletionAtOnce(t, "deleted-at-once", shard),
		interruptedDeletion(deleted, shard, deleteMachinePool),
		interruptedRecreation(recreated, shard),
	)
}

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
