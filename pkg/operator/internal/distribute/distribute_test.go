// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
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
			if got := even(c.replicas, c.shards); !slices.Equal(got, c.want) {
				t.Errorf("even(%d, %d) = %v, want %v", c.replicas, c.shards, got, c.want)
			}
		})
	}
}

// For any input the shares add up, differ by at most one, and never increase
// along the list.
func TestEvenProperties(t *testing.T) {
	withSeeds(t, func(t *testing.T, random *rand.Rand) {
		for range 1000 {
			replicas, shards := random.Int32N(1<<16), 1+random.IntN(1<<8)
			sizes := even(replicas, shards)
			if len(sizes) != shards || Total(sizes) != replicas || sizes[0]-sizes[shards-1] > 1 || !slices.IsSortedFunc(sizes, descending) {
				t.Fatalf("even(%d, %d) = %v", replicas, shards, sizes)
			}
		}
	})
}

func descending(a, b int32) int { return cmp.Compare(b, a) }
