// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/installation"
)

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
