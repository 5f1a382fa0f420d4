// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
)

// BenchmarkScaleDown500 deletes one instance after the other from a pool of 50 and from a pool of
// 500, as the autoscaler does, and counts the operator's writes for each, which must not be more
// in the larger pool. It does not delete its pools.
func BenchmarkScaleDown500(b *testing.B) {
	const downs = 5
	writesPerDown := map[int]float64{}
	for _, size := range []int{50, 500} {
		b.Run(fmt.Sprintf("instances=%d", size), func(b *testing.B) {
			group, random := createLastingPool(b, fmt.Sprintf("bench-%d", size), 0), newRandom(b)
			for b.Loop() {
				grow(b, group, size)
				var writes []controlplane.Write
				var took time.Duration
				for range downs {
					node := selectNodes(b, group, random, 1)[0]
					env.UntilNoWrites(b, timeout, 20, testcluster.ByOperator)
					from, begin := env.AuditEnd(b), time.Now()
					require.NoError(b, group.deleteNodes(b.Context(), node))
					untilMachinesDeleted(b, node.Name)
					took += time.Since(begin)
					env.UntilNoWrites(b, timeout, 20, testcluster.ByOperator)
					writes = append(writes, changesSince(b, from, testcluster.ByOperator)...)
				}
				writesPerDown[size] = float64(len(writes)) / downs
				perDown := func(resources ...string) float64 {
					return testcluster.CountResources(writes, resources...) / downs
				}
				b.ReportMetric(writesPerDown[size], "writes/down")
				b.ReportMetric(perDown("nstanceshardgroups"), "shardgroup-writes/down")
				b.ReportMetric(perDown("nstancemachinepools"), "pool-writes/down")
				b.ReportMetric(perDown("nstancemachines"), "nstancemachine-writes/down")
				b.ReportMetric(perDown("machines", "nodes"), "other-writes/down")
				b.ReportMetric(perDown("events"), "events/down")
				b.ReportMetric(took.Seconds()/downs, "s-until-deleted")
			}
		})
	}
	// The command line may select only one of the sub-benchmarks.
	small, large := writesPerDown[50], writesPerDown[500]
	if small > 0 && large > small+1 {
		b.Errorf("one scale-down costs %v writes in a pool of 500, and %v in one of 50", large, small)
	}
}

// grow scales a pool up in steps: when many Nodes register at once, Cluster API's
// writes to the MachinePool conflict.
func grow(b *testing.B, group nodeGroup, size int) {
	b.Helper()
	const step, timeout = 50, 10 * time.Minute
	present, err := group.targetSize(b.Context())
	require.NoError(b, err)
	for at := int(present); at < size; {
		delta := min(step, size-at)
		begin := time.Now()
		require.NoError(b, group.increaseSize(b.Context(), int64(delta)))
		at += delta
		testcluster.EventuallyEvery(b, 2*time.Second, timeout, fmt.Sprintf("%d instances have Machines that run", at), func(ctx context.Context) error {
			_, err := running(ctx, group.name, at)
			return err
		})
		b.Logf("%d instances and Machines run, %d more after %s", at, delta, time.Since(begin).Round(time.Second/10))
	}
}
