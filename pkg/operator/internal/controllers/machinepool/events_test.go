// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Each change of the desired number is an event with both numbers.
func TestScalingIsRecorded(t *testing.T) {
	pool := newPool("a", "b", "c")
	h := newHarness(t, withSizes(map[string]int32{"a": 0, "b": 0, "c": 0}), pool)
	step := func(replicas int32, want ...string) {
		t.Helper()
		h.scale(replicas)
		_, _, err := h.sync()
		assert.NoError(t, err)
		h.Show()
		for _, shard := range []string{"a", "b", "c"} {
			h.report(shard, func(g *v1beta1.NstanceShardGroup) { ready(g) })
		}
		_, _, err = h.sync()
		assert.NoError(t, err)
		h.Show()
		assert.Equal(t, want, h.Events())
	}
	step(9)
	step(12, "Normal Scaled from 9 to 12 instances")
	step(15, "Normal Scaled from 12 to 15 instances")
	step(15)
	step(9, "Normal Scaled from 15 to 9 instances")

	// The sizes do not change while the replicas cannot be spread.
	step(10_001, `Warning TooManyReplicas MachinePool "workers" has 10001 replicas, and a pool has at most 10000; the sizes stay`)
	h.expectSizes(map[string]int32{"a": 3, "b": 3, "c": 3})
	step(9)
}

func TestShardsThatAreConnectedAgainAreRecorded(t *testing.T) {
	pool := newPool("a", "b")
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1}), pool, ready(newShardGroup(pool, "a", 1)), ready(newShardGroup(pool, "b", 1)))
	h.scale(2)
	sync := func(want ...string) {
		t.Helper()
		_, _, err := h.sync()
		assert.NoError(t, err)
		h.Show()
		assert.Equal(t, want, h.Events())
	}
	sync()
	h.report("b", func(g *v1beta1.NstanceShardGroup) { away(g) })
	sync("Warning ShardUnreachable b: connection refused")
	h.report("b", func(g *v1beta1.NstanceShardGroup) { ready(g) })
	sync("Normal ShardsReachable all shards of the pool are connected again")
	sync()
}
