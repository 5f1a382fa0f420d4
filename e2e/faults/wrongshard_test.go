// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A shard whose address is that of another one is unreachable. What the other server has
// is not believed, so nothing is deleted, and nothing is sent there. The rest of the
// shards continues.
func TestWrongShard(t *testing.T) {
	const name = "misled"
	o := runFaultyOperator(t)
	replicas := int32(7)
	pool := testcluster.NewNstanceMachinePool(name, shardIDs...)
	pool.Spec.Machines = v1beta1.MachinesAlways
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, replicas), pool))
	env.UntilRunning(t, name, replicas)

	a, b, c := shardIDs[0], shardIDs[1], shardIDs[2]
	for _, test := range []struct {
		name   string
		change func(data map[string]string)
		reason string
		// right is a shard that grows meanwhile.
		right string
	}{
		{"addresses are swapped", func(data map[string]string) { data[a], data[c] = data[c], data[a] }, v1beta1.ReasonWrongShard, b},
		{"two shards have one address", func(data map[string]string) { data[a] = data[b] }, v1beta1.ReasonUnknownShard, c},
	} {
		t.Run(test.name, func(t *testing.T) {
			restore := env.SaveConfigMap(t, "nstance-shards")
			from, calls := env.AuditEnd(t), countCalls(t)
			env.EditShards(t, test.change)
			if test.reason == v1beta1.ReasonWrongShard {
				untilPoolUnreachable(t, name, test.reason)
			}
			// Without a cache of the time before.
			o.restart(t)
			untilPoolUnreachable(t, name, test.reason)

			replicas += 3
			env.Scale(t, name, replicas)
			testcluster.Eventually(t, time.Minute, "shard "+test.right+" grows", func(context.Context) error {
				if now := countCalls(t)[test.right]; now == calls[test.right] {
					return fmt.Errorf("%d calls as before", now)
				}
				return nil
			})
			if deletions := env.Requests(t, from, testcluster.IsDeletion); len(deletions) > 0 {
				t.Errorf("%d deletions:%s", len(deletions), testcluster.Describe(deletions))
			}
			for _, shard := range shardIDs {
				if received := env.Calls(t, shard)[calls[shard]:]; shard != test.right {
					assert.Empty(t, received, "shard %s", shard)
				}
			}
			restore()
			env.UntilRunning(t, name, replicas)
			if deletions := env.Requests(t, from, testcluster.IsDeletion); len(deletions) > 0 {
				t.Errorf("%d deletions after the correction:%s", len(deletions), testcluster.Describe(deletions))
			}
		})
	}
}

// countCalls returns how many calls that change groups each shard has received.
func countCalls(t *testing.T) map[string]int {
	t.Helper()
	calls := map[string]int{}
	for _, shard := range shardIDs {
		calls[shard] = len(env.Calls(t, shard))
	}
	return calls
}
