// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// When nothing changes the operator writes nothing and reads nothing, through several
// resyncs: with pools of one instance on one of their shards, one of several instances on
// each, one whose instances have Machines, and a Machine of its own. Package ondemand has
// the machines of Pods; a drain in progress is a change.
func TestQuietWhenIdle(t *testing.T) {
	const (
		pools, rounds = 100, 5
		members       = 7
		large         = "quiet-large"
		withMachines  = "quiet-machines"
		machine       = "quiet-machine"
	)
	names := make([]string, pools)
	var group errgroup.Group
	group.SetLimit(8)
	for i := range names {
		names[i] = fmt.Sprintf("quiet-%d", i)
		group.Go(func() error { return env.CreatePoolOnAllShards(t.Context(), names[i], 1) })
	}
	require.NoError(t, group.Wait())
	t.Cleanup(func() { env.DeletePools(t, names...) })
	for _, name := range names {
		testcluster.Eventually(t, 5*time.Minute, name+" runs", func(ctx context.Context) error { return env.Running(ctx, name, 1) })
	}
	for name, machines := range map[string]v1beta1.MachinesMode{large: v1beta1.MachinesNever, withMachines: v1beta1.MachinesAlways} {
		runPoolWith(t, name, members, machines)
		t.Cleanup(func() { deletePool(t, name) })
	}
	runMachine(t, machine, large)
	// The syncs that the operator's own writes trigger come first.
	untilResynced(t, pools, members, 1)

	from, calls, begin := env.AuditEnd(t), upserts(t), time.Now()
	untilResynced(t, pools, members, rounds)
	t.Logf("%d pools, %d resyncs, %s", pools+2, rounds, time.Since(begin).Round(time.Second))
	if writes := env.OperatorWrites(t, from); len(writes) > 0 {
		t.Errorf("%d writes while nothing changed:%s", len(writes), testcluster.Describe(writes))
	}
	reads := env.OperatorRequests(t, from, func(r controlplane.Request) bool { return r.Verb == "get" || r.Verb == "list" })
	if len(reads) > 0 {
		t.Errorf("%d reads while nothing changed:%s", len(reads), testcluster.Describe(reads))
	}
	if more := upserts(t) - calls; more > 0 {
		t.Errorf("%v UpsertGroup calls while nothing changed", more)
	}
}

// untilResynced waits until the shard groups of so many pools, and so many Machines and one
// more, were resynced so many times.
func untilResynced(t *testing.T, pools, machines, rounds int) {
	t.Helper()
	env.UntilQueued(t, 10*time.Minute, "shardgroup", pools*len(shardIDs)*rounds)
	env.UntilQueued(t, 10*time.Minute, "machine", (machines+1)*rounds)
}

// runMachine creates a Machine of a group, waits until it runs, and deletes it at the end
// of the test.
func runMachine(t *testing.T, name, group string) {
	t.Helper()
	env.CreateMachine(t, name, group, "")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		require.NoError(t, env.Machines().Delete(ctx, name, metav1.DeleteOptions{}))
		testcluster.Eventually(t, 2*time.Minute, name+" is deleted", func(ctx context.Context) error {
			return env.MachineDeleted(ctx, name, "")
		})
	})
	testcluster.Eventually(t, 2*time.Minute, name+" runs", func(ctx context.Context) error {
		machine, err := env.Machines().Get(ctx, name, metav1.GetOptions{})
		if err == nil && machine.Status.Phase != string(clusterv1.MachinePhaseRunning) {
			err = fmt.Errorf("the Machine is %s", machine.Status.Phase)
		}
		return err
	})
}
