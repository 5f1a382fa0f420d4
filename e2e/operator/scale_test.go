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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

// A pool is scaled up, down and to zero.
func TestScale(t *testing.T) {
	t.Parallel()
	env.CreatePoolForTest(t, "workers", 3)
	testcluster.Eventually(t, 2*time.Minute, "the cluster is provisioned and available", func(ctx context.Context) error {
		cluster, err := env.Clusters().Get(ctx, installation.ClusterName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if cluster.Status.Phase != string(clusterv1.ClusterPhaseProvisioned) ||
			!meta.IsStatusConditionTrue(cluster.Status.Conditions, clusterv1.ClusterAvailableCondition) {
			return fmt.Errorf("phase %s, conditions %+v", cluster.Status.Phase, cluster.Status.Conditions)
		}
		return nil
	})
	for _, step := range []struct {
		replicas int32
		sizes    []int32
	}{
		{3, []int32{1, 1, 1}},
		{10, []int32{4, 3, 3}},
		{4, []int32{2, 1, 1}},
		{0, []int32{0, 0, 0}},
		{2, []int32{1, 1, 0}},
	} {
		env.Scale(t, "workers", step.replicas)
		testcluster.Eventually(t, time.Minute, fmt.Sprintf("%d replicas are spread", step.replicas), func(ctx context.Context) error {
			return env.SizesAre(ctx, "workers", step.sizes...)
		})
		env.UntilRunning(t, "workers", step.replicas)
	}
}

// A pool without a MachinePool gets a MachinePool with as many replicas as its group has.
func TestMachinePoolIsCreated(t *testing.T) {
	t.Parallel()
	const name = "adopted"
	upsertDirectly(t, "us-west-2a", name, 2)
	upsertDirectly(t, "us-west-2c", name, 1)
	_, err := env.NstanceMachinePools().
		Create(t.Context(), testcluster.NewNstanceMachinePool(name, shardIDs...), metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { env.DeletePools(t, name) })
	testcluster.Eventually(t, time.Minute, "the MachinePool has the sum of the sizes", func(ctx context.Context) error {
		machinePool, err := env.MachinePools().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if machinePool.Spec.Replicas == nil || *machinePool.Spec.Replicas != 3 {
			return fmt.Errorf("replicas %v, want 3", machinePool.Spec.Replicas)
		}
		return nil
	})
	env.UntilRunning(t, name, 3)
}

// One change of a pool costs few writes, however many instances are created or deleted. The number
// of status writes depends on how fast the instances are created; the minimum is reached on an
// idle machine.
func TestWritesPerChange(t *testing.T) {
	const name = "counted"
	env.CreatePoolForTest(t, name, 3)
	env.UntilRunning(t, name, 3)

	cheap := 0
	for _, replicas := range []int32{15, 6} {
		from := env.AuditEnd(t)
		env.Scale(t, name, replicas)
		env.UntilRunning(t, name, replicas)
		count := countWrites(t, from, name)
		t.Logf("scaling to %d: %s", replicas, count)
		// If each shard reports at another moment, each report is a write of the pool's list and
		// another of its status.
		if count.shardGroupSpecs > 3 || count.shardGroupStatuses > 9 || count.pool > 7 || count.events > 4 || count.other > 0 {
			t.Errorf("scaling to %d cost %s; at most 3 spec writes and 9 status writes to the 3 shard groups, 7 to the pool and 4 events are allowed:%s",
				replicas, count, testcluster.Describe(env.OperatorWrites(t, from)))
		}
		if count.pool <= 5 {
			cheap++
		}
	}
	if cheap == 0 {
		t.Error("no change cost at most 5 writes of the pool")
	}
}

type writeCount struct{ shardGroupSpecs, shardGroupStatuses, pool, events, other int }

func (c writeCount) String() string {
	return fmt.Sprintf("%d shard group specs, %d shard group statuses, %d pool, %d events, %d other",
		c.shardGroupSpecs, c.shardGroupStatuses, c.pool, c.events, c.other)
}

// countWrites counts the operator's writes since from by kind of object.
func countWrites(t testing.TB, from controlplane.Position, pool string) writeCount {
	t.Helper()
	var count writeCount
	for _, w := range env.OperatorWrites(t, from) {
		switch {
		case w.Resource == "nstanceshardgroups" && w.Subresource == "":
			count.shardGroupSpecs++
		case w.Resource == "nstanceshardgroups" && w.Subresource == "status":
			count.shardGroupStatuses++
		case w.Resource == "nstancemachinepools" && w.Name == pool:
			count.pool++
		case w.Resource == "events":
			count.events++
		default:
			count.other++
		}
	}
	return count
}

// Cluster API defaults missing replicas to 1: a MachinePool with 5 replicas would lose four
// instances without a request by the user.
func TestReplicasAreRequired(t *testing.T) {
	t.Parallel()
	const name = "left-out"
	env.CreatePoolForTest(t, name, 5)
	env.UntilRunning(t, name, 5)
	losses := env.NewLossChecker(t, name)
	losses.IgnoreOtherGroups = true

	removeReplicas := func() error {
		_, err := env.ClusterAPI("machinepools").
			Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"replicas":null}}`), metav1.PatchOptions{})
		return err
	}
	if err := removeReplicas(); !apierrors.IsInvalid(err) {
		t.Errorf("got %v, want the replicas to be required", err)
	}
	// Replicas that were set by scaling have no field manager, and are protected as well.
	env.Scale(t, name, 6)
	if err := removeReplicas(); !apierrors.IsInvalid(err) {
		t.Errorf("after scaling: got %v, want the replicas to be required", err)
	}
	env.UntilRunning(t, name, 6)
	losses.ExpectNone(t)

	// Replicas can be changed by scaling and by editing.
	env.PatchMachinePool(t, name, `{"spec":{"replicas":2}}`)
	env.UntilRunning(t, name, 2)
	env.Scale(t, name, 1)
	env.UntilRunning(t, name, 1)
}

// Without changes the operator writes nothing and reads nothing, through several resyncs: with
// pools of a single instance, a pool of several instances on each shard, a pool whose instances
// have Machines, and a single Machine. Package ondemand has the machines of Pods; a drain in
// progress is a change.
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
	for name, machines := range map[string]v1beta1.MachineMode{large: v1beta1.MachineModeNever, withMachines: v1beta1.MachineModeAlways} {
		pool := testcluster.NewNstanceMachinePool(name, shardIDs...)
		pool.Spec.MachineMode = machines
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

// untilResynced waits until the shard groups of so many pools, so many Machines and the single
// Machine were resynced so many times.
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

// upserts returns how many UpsertGroup calls all shard servers have received since each
// of them started.
func upserts(t testing.TB) float64 {
	t.Helper()
	var sum float64
	for _, shard := range shards {
		sum += upsertsOf(t, shard.ID)
	}
	return sum
}

func upsertsOf(t testing.TB, id string) float64 {
	t.Helper()
	for _, shard := range shards {
		if shard.ID != id {
			continue
		}
		count, err := installation.Metric(t.Context(), shard.URL(), "nstance_server_rpc_total", map[string]string{"method": "UpsertGroup"})
		require.NoError(t, err)
		return count
	}
	t.Fatalf("no shard %s", id)
	return 0
}
