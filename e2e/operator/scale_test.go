// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
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

// A pool without a MachinePool gets one, with as many replicas as its group has.
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

// One change of a pool costs few writes, however many instances are created or deleted.
// How many statuses report them depends on how fast they are created; the minimum is
// measured where nothing else runs.
func TestWritesPerChange(t *testing.T) {
	const name = "counted"
	env.CreatePoolForTest(t, name, 3)
	env.UntilRunning(t, name, 3)

	for _, replicas := range []int32{15, 6} {
		from := env.AuditEnd(t)
		env.Scale(t, name, replicas)
		env.UntilRunning(t, name, replicas)
		count := countWrites(t, from, name)
		t.Logf("scaling to %d: %s", replicas, count)
		if count.shardGroupSpecs > 3 || count.shardGroupStatuses > 9 || count.pool > 5 || count.events > 4 || count.other > 0 {
			t.Errorf("scaling to %d cost %s; at most 3 spec writes and 9 status writes to the 3 shard groups 5 to the pool and 4 events are allowed:%s",
				replicas, count, testcluster.Describe(env.OperatorWrites(t, from)))
		}
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
