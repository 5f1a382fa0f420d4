// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"testing"

	"nstance.dev/operator/e2e/nstance"
)

// metric adds up the series of a metric whose labels contain labels.
func metric(ctx context.Context, url, name string, labels map[string]string) (float64, error) {
	return nstance.Metric(ctx, url, name, labels)
}

// upserts is how many UpsertGroup calls all shard servers have received since
// each of them started.
func upserts(t testing.TB) float64 {
	t.Helper()
	var sum float64
	for _, shard := range env.shards {
		sum += upsertsOf(t, shard.ID)
	}
	return sum
}

func upsertsOf(t testing.TB, id string) float64 {
	t.Helper()
	for _, shard := range env.shards {
		if shard.ID != id {
			continue
		}
		count, err := metric(t.Context(), shard.URL(), "nstance_server_rpc_total", map[string]string{"method": "UpsertGroup"})
		if err != nil {
			t.Fatal(err)
		}
		return count
	}
	t.Fatalf("no shard %s", id)
	return 0
}
