// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// changeRounds is how often the pool of BenchmarkChange is scaled.
const changeRounds = 5

// BenchmarkChange counts the requests to the API server and the calls to the shards for one
// scaling of a pool over three shards, and fails if there are more than the target. On a machine
// that is busy some instances run later than the others, and their shard group has a second status:
// the figures are of the scaling with the fewest writes.
func BenchmarkChange(b *testing.B) {
	const name = "writes"
	env.CreatePoolForTest(b, name, 3)
	env.UntilRunning(b, name, 3)
	for b.Loop() {
		rounds := make([]change, changeRounds)
		for n := range rounds {
			rounds[n] = scaleUp(b, name, 12)
			b.Logf("round %d: %+v", n, rounds[n])
			env.Scale(b, name, 3)
			env.UntilRunning(b, name, 3)
		}
		fewest := slices.MinFunc(rounds, func(x, y change) int {
			return cmp.Compare(x.specs+x.statuses+x.pool, y.specs+y.statuses+y.pool)
		})
		if fewest.specs > 1 || fewest.statuses > 1 || fewest.pool > 3 {
			b.Errorf("%v spec writes and %v status writes per shard group, and %v writes of the pool, want at most 1, 1 and 3",
				fewest.specs, fewest.statuses, fewest.pool)
		}
		b.ReportMetric(fewest.specs, "specs/shardgroup")
		b.ReportMetric(fewest.statuses, "statuses/shardgroup")
		b.ReportMetric(fewest.pool, "writes/pool")
		b.ReportMetric(fewest.upserts, "upserts/shard")
	}
}

// change is what one scaling of a pool over three shards costs: writes of the specs and statuses of each shard group,
// writes of the pool, and calls of each shard.
type change struct{ specs, statuses, pool, upserts float64 }

func scaleUp(b *testing.B, name string, replicas int32) change {
	b.Helper()
	env.UntilNoWrites(b, time.Minute, 5)
	from, calls := env.AuditEnd(b), upserts(b)
	env.Scale(b, name, replicas)
	env.UntilRunning(b, name, replicas)
	count := countWrites(b, from, name)
	return change{
		specs:    float64(count.shardGroupSpecs) / 3,
		statuses: float64(count.shardGroupStatuses) / 3,
		pool:     float64(count.pool),
		upserts:  (upserts(b) - calls) / 3,
	}
}

const (
	handovers = 50
	// mostHandover is the target for each handover.
	mostHandover = 2 * time.Second
)

// BenchmarkHandover measures from the SIGTERM of a leader to the moment when the other
// operator has the Lease.
func BenchmarkHandover(b *testing.B) {
	// The first operator leads, because it was started first.
	leader, next := env.OperatorProcess(), env.Component(env.RunStandby(b).Component)
	took := make([]time.Duration, 0, handovers)
	for b.Loop() {
		for range handovers {
			took = append(took, handOver(b, leader))
			testcluster.Start(b, leader)
			leader, next = next, leader
		}
	}
	slices.Sort(took)
	b.ReportMetric(milliseconds(median(took)), "p50-ms")
	b.ReportMetric(milliseconds(took[len(took)-1]), "max-ms")
	if most := took[len(took)-1]; most > mostHandover {
		b.Errorf("a handover took %s, want at most %s", most, mostHandover)
	}
}

// handOver stops the leader and returns the time until another process has the Lease.
func handOver(b *testing.B, leader *controlplane.Component) time.Duration {
	b.Helper()
	leases := env.Kube.CoordinationV1().Leases(installation.Namespace)
	lease, err := leases.Get(b.Context(), "nstance-operator-leader-election", metav1.GetOptions{})
	require.NoError(b, err)
	before := ptr.Deref(lease.Spec.HolderIdentity, "")
	require.NotEmpty(b, before)
	watcher, err := leases.Watch(b.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=" + lease.Name, ResourceVersion: lease.ResourceVersion,
	})
	require.NoError(b, err)
	defer watcher.Stop()
	start := time.Now()
	stopped := make(chan error, 1)
	go func() { stopped <- leader.Stop(context.WithoutCancel(b.Context())) }()
	for event := range watcher.ResultChan() {
		changed, ok := event.Object.(*coordinationv1.Lease)
		if !ok {
			b.Fatalf("the watch of the Lease returned %v", event.Object)
		}
		if holder := ptr.Deref(changed.Spec.HolderIdentity, ""); holder != "" && holder != before {
			took := time.Since(start)
			require.NoError(b, <-stopped)
			return took
		}
	}
	b.Fatal("the watch of the Lease has ended")
	return 0
}

// The most anonymous memory that the operator may have, without pools in MiB, and for each
// pool in KiB.
const (
	maxBefore  = 13
	maxPerPool = 36
)

// BenchmarkMemory measures the resident memory of an operator with the default flags,
// without work: without pools, and restarted with 1,000 pools over three shards. It does not delete
// them, so it must be the last benchmark.
func BenchmarkMemory(b *testing.B) {
	const pools = 1000
	operator := env.ReplaceOperator(b)
	before := readMemory(b, operator)
	for b.Loop() {
		var group errgroup.Group
		group.SetLimit(8)
		for i := range pools {
			group.Go(func() error { return env.CreatePoolOnAllShards(b.Context(), fmt.Sprintf("many-%d", i), 0) })
		}
		require.NoError(b, group.Wait())
		testcluster.Eventually(b, 15*time.Minute, "all pools are ready", func(ctx context.Context) error {
			list, err := env.NstanceMachinePools().List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			ready := 0
			for _, pool := range list.Items {
				if strings.HasPrefix(pool.Name, "many-") && meta.IsStatusConditionTrue(pool.Status.Conditions, v1beta1.ConditionReady) {
					ready++
				}
			}
			if ready < pools {
				return fmt.Errorf("%d of %d", ready, pools)
			}
			return nil
		})
	}
	// The heap of an operator that has made the objects has gaps between those that it keeps.
	require.NoError(b, operator.Process.Kill(b.Context()))
	env.ReleaseLease(b)
	require.NoError(b, operator.Process.Start(b.Context()))
	testcluster.Eventually(b, 5*time.Minute, "the operator has seen every shard group", func(ctx context.Context) error {
		seen, err := testcluster.QueueAdds(ctx, operator.Operator, "shardgroup")
		if err == nil && seen < 3*pools {
			err = fmt.Errorf("%.0f of %d", seen, 3*pools)
		}
		return err
	})
	after := readMemory(b, operator)
	b.ReportMetric(before.resident, "MiB-before")
	b.ReportMetric(after.resident, "MiB-with-1000-pools")
	b.ReportMetric(before.anonymous, "MiB-anonymous-before")
	b.ReportMetric(after.anonymous, "MiB-anonymous-with-1000-pools")
	perPool := (after.anonymous - before.anonymous) * 1024 / pools
	b.ReportMetric(perPool, "KiB/pool")
	if before.anonymous > maxBefore || perPool > maxPerPool {
		b.Errorf("%.0f MiB without pools and %.0f KiB for each, want at most %d and %d", before.anonymous, perPool, maxBefore, maxPerPool)
	}
}

// memory is the operator's memory in MiB. The anonymous part is the heap and the stacks; the other
// part is the program file, and differs by kernel and file system.
type memory struct{ resident, anonymous float64 }

// readMemory waits until the operator has no work, has collected garbage twice since, and returns
// no more memory. The runtime collects at the latest after two minutes, and returns what two
// collections in a row have not used (https://go.dev/doc/gc-guide).
func readMemory(b *testing.B, operator *testcluster.ProxiedOperator) memory {
	b.Helper()
	env.UntilNoWrites(b, time.Minute, 5)
	last, collections := float64(time.Now().Unix()), 0
	testcluster.EventuallyEvery(b, time.Second, 6*time.Minute, "the garbage is collected", func(ctx context.Context) error {
		collected, err := installation.Metric(ctx, operator.URL(), "go_memstats_last_gc_time_seconds", nil)
		if err != nil {
			return err
		}
		if collected > last {
			last, collections = collected, collections+1
		}
		if collections < 2 {
			return fmt.Errorf("%d collections", collections)
		}
		return nil
	})
	least := math.Inf(1)
	testcluster.EventuallyEvery(b, 10*time.Second, 5*time.Minute, "no more memory is returned", func(context.Context) error {
		before := least
		anonymous, err := operator.Process.AnonymousMemory()
		if err != nil {
			return err
		}
		least = min(before, anonymous)
		if anonymous < before {
			return fmt.Errorf("%.1f MiB, before %.1f", anonymous, before)
		}
		return nil
	})
	resident, _, err := operator.Process.Memory()
	require.NoError(b, err)
	anonymous, err := operator.Process.AnonymousMemory()
	require.NoError(b, err)
	return memory{resident: resident, anonymous: anonymous}
}
