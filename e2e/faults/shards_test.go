// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

func (o *faultyOperator) shardFaults() []testcluster.Fault {
	return append([]testcluster.Fault{
		{Name: "a shard is down at the start", Happen: testcluster.During(func(t *testing.T) {
			shard := env.ShardServer(shardIDs[2])
			require.NoError(t, shard.Kill(t.Context()))
			defer testcluster.Start(t, shard)
			untilUnreachable(t, v1beta1.ReasonShardUnreachable)
			o.restart(t)
			o.untilWorking(t)
			untilUnreachable(t, v1beta1.ReasonShardUnreachable)
		})},
		{Name: "a shard hangs at the start", Happen: testcluster.During(func(t *testing.T) {
			defer testcluster.Freeze(t, env.ShardServer(shardIDs[0]))()
			o.restart(t)
			untilUnreachable(t, v1beta1.ReasonShardUnreachable)
		})},
	}, testcluster.InFull(
		// The kernel accepts the connections of a process that is suspended.
		testcluster.Fault{Name: "a shard accepts connections and never reads", Happen: testcluster.During(func(t *testing.T) {
			defer env.SaveConfigMap(t, "nstance-shards")()
			silent, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer silent.Close()
			env.EditShards(t, func(data map[string]string) { data[shardIDs[1]] = silent.Addr().String() })
			o.restart(t)
			untilUnreachable(t, v1beta1.ReasonShardUnreachable)
		})},
	)...)
}
