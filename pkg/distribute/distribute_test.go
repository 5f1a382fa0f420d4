// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"math"
	"slices"
	"testing"
	"testing/quick"
)

func TestEven(t *testing.T) {
	for name, c := range map[string]struct {
		replicas int32
		shards   int
		want     []int32
	}{
		"ten over three":          {10, 3, []int32{4, 3, 3}},
		"four over three":         {4, 3, []int32{2, 1, 1}},
		"five over two":           {5, 2, []int32{3, 2}},
		"fewer than shards":       {1, 3, []int32{1, 0, 0}},
		"nothing":                 {0, 3, []int32{0, 0, 0}},
		"one shard":               {7, 1, []int32{7}},
		"negative counts as zero": {-3, 2, []int32{0, 0}},
		"no shards":               {3, 0, nil},
		"negative shards":         {3, -1, nil},
		"the largest int32":       {math.MaxInt32, 2, []int32{math.MaxInt32/2 + 1, math.MaxInt32 / 2}},
		"more shards than usual":  {3, 5, []int32{1, 1, 1, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Even(c.replicas, c.shards); !slices.Equal(got, c.want) {
				t.Errorf("Even(%d, %d) = %v, want %v", c.replicas, c.shards, got, c.want)
			}
		})
	}
}

// For any input the shares add up, differ by at most one, and never increase
// along the list.
func TestEvenProperties(t *testing.T) {
	property := func(replicas uint16, shards uint8) bool {
		if shards == 0 {
			return Even(int32(replicas), 0) == nil
		}
		sizes := Even(int32(replicas), int(shards))
		var sum int32
		for i, size := range sizes {
			sum += size
			if i > 0 && size > sizes[i-1] {
				return false
			}
		}
		return len(sizes) == int(shards) && sum == int32(replicas) && sizes[0]-sizes[len(sizes)-1] <= 1
	}
	if err := quick.Check(property, nil); err != nil {
		t.Error(err)
	}
}
