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

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

// When nothing changes the operator writes nothing and reads nothing, through several
// resyncs: with pools of one instance on one of their shards, one of several instances on
// each, one whose instances have Machines, and a Machine of its own. Package ondemand has
// the machines of Pods; a drain in progress is a change.
func TestQuietWhenIdle(t *testing.T) {
	const (
		members      = 7
		large        = "quiet-large"
		withMachines = "quiet-machines"
		machine      = "quiet-machine"
	)
	// Each pool is resynced on its own.
	pools, rounds := tier.Pick(10, 100), tier.Pick(3, 5)
	names := make([]string, pools)
	var group errgroup.Group
	group.SetLimit(8)
	for i := range names {
		names[i] = fmt.Sprintf("quiet-%d", i)
		group.Go(func() error { return env.CreatePoolOnAllShards(t.Context(), names[i], 1) })
	}
	for name, machines := range map[string]v1beta1.MachinesMode{large: v1beta1.MachinesNever, withMachines: v1beta1.MachinesAlways} {
		pool := testcluster.NewNstanceMachinePool(name, shardIDs...)
		pool.Spec.Machines = machines
		group.Go(func() error { return env.CreatePool(t.Context(), testcluster.NewMachinePool(name, members), pool) })
	}
	require.NoError(t, group.Wait())
	t.Cleanup(func() { deletePools(t, append(names, large, withMachines)...) })
	for _, name := range names {
		testcluster.Eventually(t, 5*time.Minute, name+" runs", func(ctx context.Context) error { return env.Running(ctx, name, 1) })
	}
	env.UntilRunning(t, large, members)
	env.UntilRunning(t, withMachines, members)
	untilMachines(t, withMachines, members)
	runMachine(t, machine, large)
	// The syncs that the operator's own writes trigger come first.
	untilResynced(t, pools, members, 1)

	from, calls, begin := env.AuditEnd(t), upserts(t), time.Now()
	untilResynced(t, pools, members, rounds)
	t.Logf("%d pools, %d resyncs, %s", pools+2, rounds, time.Since(begin).Round(time.Second))
	if writes := env.OperatorWrites(t, from); len(writes) > 0 {
		t.Errorf("%d writes while nothing changed:%s", len(writes), testcluster.Describe(writes))
	}
	if reads := testcluster.Reads(env.Requests(t, from, testcluster.ByOperator)); len(reads) > 0 {
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
	wanted := map[string]float64{"shardgroup": float64(pools * len(shardIDs) * rounds), "machine": float64((machines + 1) * rounds)}
	for queue := range wanted {
		before, err := testcluster.QueueAdds(t.Context(), env.Operator, queue)
		require.NoError(t, err)
		wanted[queue] += before
	}
	for queue, want := range wanted {
		testcluster.Eventually(t, 10*time.Minute, "keys are added to queue "+queue, func(ctx context.Context) error {
			now, err := testcluster.QueueAdds(ctx, env.Operator, queue)
			if err == nil && now < want {
				err = fmt.Errorf("%v of %v", now, want)
			}
			return err
		})
	}
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
