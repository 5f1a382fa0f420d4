// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardfaults

import (
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/testcluster"
)

func serverFaults() []testcluster.Fault {
	return append([]testcluster.Fault{
		{Name: "all servers are killed", Happen: testcluster.During(func(t *testing.T) { killAndStart(t, shardIDs...) })},
		{Name: "a server is killed several times", Happen: testcluster.During(func(t *testing.T) {
			for range 4 {
				killAndStart(t, shardIDs[0])
			}
		})},
		{Name: "all servers hang", Happen: testcluster.During(func(t *testing.T) { hang(t, shardIDs...) })},
	}, testcluster.InFull(
		testcluster.Fault{Name: "a server is killed", Happen: testcluster.During(func(t *testing.T) { killAndStart(t, shardIDs[1]) })},
		testcluster.Fault{Name: "a server hangs", Happen: testcluster.During(func(t *testing.T) { hang(t, shardIDs[2]) })},
	)...)
}

func killAndStart(t *testing.T, shards ...string) {
	t.Helper()
	for _, shard := range shards {
		require.NoError(t, env.ShardServer(shard).Kill(t.Context()))
	}
	for _, shard := range shards {
		testcluster.Start(t, env.ShardServer(shard))
	}
}

// hang suspends servers until the operator reports it.
func hang(t *testing.T, shards ...string) {
	t.Helper()
	for _, shard := range shards {
		server := env.ShardServer(shard)
		require.NoError(t, testcluster.FreezeUnlocked(server, env.Installation.Bucket()))
		defer func() { require.NoError(t, server.Thaw()) }()
	}
	untilUnreachable(t)
}
