// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestVolumeOrdinal(t *testing.T) {
	for name, want := range map[string]int32{"data-demo-0": 0, "data-demo-7": 7, "data-demo-1000": 1000} {
		got, ok := VolumeOrdinal("demo", name)
		assert.True(t, ok, name)
		assert.Equal(t, want, got, name)
	}
	for _, name := range []string{
		"data-demo-007", "data-demo-", "data-demo--1", "data-demo-+1", "data-demo-1a", "data-demo-99999999999", "data-demo-0x1",
		"data-demo", "data-demo2-1", "data-other-1", "demo-1", "xdata-demo-1", "data-demo-1_0", "data-demo-a-1",
	} {
		_, ok := VolumeOrdinal("demo", name)
		assert.False(t, ok, name)
	}
}

func TestReclaimable(t *testing.T) {
	volumes := []Volume{{Ordinal: 0}, {Ordinal: 5}, {Ordinal: 6}, {Ordinal: 7}, {Ordinal: 8, Terminating: true}}
	assert.Equal(t, []Volume{{Ordinal: 6}, {Ordinal: 7}}, Reclaimable(6, healthy(6), volumes))
	assert.Empty(t, Reclaimable(5, healthy(6), volumes), "the size is not reached")
	assert.Empty(t, Reclaimable(7, healthy(6), volumes), "a node is added")
	for _, obstacle := range obstacles {
		if obstacle.reason == "DiskFull" {
			continue
		}
		o := healthy(6)
		obstacle.put(o)
		assert.Empty(t, Reclaimable(6, o, volumes), obstacle.name)
	}
	assert.Empty(t, Decide(&Wanted{Nodes: 6}, healthy(6), &Load{}, volumes).Reclaim, "not requested")
	assert.Len(t, Decide(&Wanted{Nodes: 6, Reclaim: true}, healthy(6), &Load{}, volumes).Reclaim, 2)
}
