// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"testing"
	"time"
)

// BenchmarkChange counts what one scaling of a pool over three shards costs in
// requests to the API server and calls to the shards.
func BenchmarkChange(b *testing.B) {
	const name = "writes"
	createPool(b, name, 3)
	eventually(b, 2*time.Minute, "the pool runs", func(ctx context.Context) error { return running(ctx, name, 3) })
	for b.Loop() {
		from, calls := auditEnd(b), upserts(b)
		scale(b, name, 12)
		eventually(b, 2*time.Minute, "the pool runs", func(ctx context.Context) error { return running(ctx, name, 12) })
		count := countWrites(b, from, name)
		b.ReportMetric(float64(count.shardGroupSpecs)/3, "specs/shardgroup")
		b.ReportMetric(float64(count.shardGroupStatuses)/3, "statuses/shardgroup")
		b.ReportMetric(float64(count.pool), "writes/pool")
		b.ReportMetric((upserts(b)-calls)/3, "upserts/shard")
	}
}
