// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"testing"
)

// BenchmarkChange counts what one scaling of a pool over three shards costs in
// requests to the API server and calls to the shards, and fails when that is more than
// the target.
func BenchmarkChange(b *testing.B) {
	const name = "writes"
	env.CreatePoolForTest(b, name, 3)
	env.UntilRunning(b, name, 3)
	for b.Loop() {
		untilIdle(b)
		from, calls := env.AuditEnd(b), upserts(b)
		env.Scale(b, name, 12)
		env.UntilRunning(b, name, 12)
		count := countWrites(b, from, name)
		specs, statuses := float64(count.shardGroupSpecs)/3, float64(count.shardGroupStatuses)/3
		if specs > 1 || statuses > 2 || count.pool > 3 {
			b.Errorf("%v spec writes and %v status writes per shard group, and %d writes of the pool, want at most 1, 2 and 3",
				specs, statuses, count.pool)
		}
		b.ReportMetric(specs, "specs/shardgroup")
		b.ReportMetric(statuses, "statuses/shardgroup")
		b.ReportMetric(float64(count.pool), "writes/pool")
		b.ReportMetric((upserts(b)-calls)/3, "upserts/shard")
	}
}
