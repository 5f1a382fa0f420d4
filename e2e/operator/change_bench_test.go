// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"testing"
)

// BenchmarkChange counts what one scaling of a pool over three shards costs in
// requests to the API server and calls to the shards.
func BenchmarkChange(b *testing.B) {
	const name = "writes"
	createPool(b, name, 3)
	untilRunning(b, name, 3)
	for b.Loop() {
		from, calls := env.AuditEnd(b), upserts(b)
		env.Scale(b, name, 12)
		untilRunning(b, name, 12)
		count := countWrites(b, from, name)
		b.ReportMetric(float64(count.shardGroupSpecs)/3, "specs/shardgroup")
		b.ReportMetric(float64(count.shardGroupStatuses)/3, "statuses/shardgroup")
		b.ReportMetric(float64(count.pool), "writes/pool")
		b.ReportMetric((upserts(b)-calls)/3, "upserts/shard")
	}
}
