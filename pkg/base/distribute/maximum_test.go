// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/testing/tier"
)

func TestShareMaximum(t *testing.T) {
	for name, test := range map[string]struct {
		maximum int32
		sizes   []int32
		kept    []*int32
		want    []int32
	}{
		"in the order of the shards":              {maximum: 2, sizes: []int32{1, 1, 1}, want: []int32{1, 1, 0}},
		"in turn":                                 {maximum: 5, sizes: []int32{3, 3, 3}, want: []int32{2, 2, 1}},
		"what does not fit goes to the next":      {maximum: 6, sizes: []int32{1, 5, 2}, want: []int32{1, 3, 2}},
		"more than all sizes":                     {maximum: 100, sizes: []int32{1, 0, 2}, want: []int32{1, 0, 2}},
		"none":                                    {maximum: 0, sizes: []int32{3, 3}, want: []int32{0, 0}},
		"no shard":                                {maximum: 3, want: []int32{}},
		"a shard keeps its share":                 {maximum: 4, sizes: []int32{3, 3, 3}, kept: []*int32{nil, ptr.To[int32](3), nil}, want: []int32{1, 3, 0}},
		"a kept share of 0":                       {maximum: 2, sizes: []int32{3, 3}, kept: []*int32{ptr.To[int32](0), nil}, want: []int32{0, 2}},
		"a kept share that is larger than a size": {maximum: 4, sizes: []int32{1, 3}, kept: []*int32{ptr.To[int32](4), nil}, want: []int32{4, 3}},
		"kept shares above the maximum":           {maximum: 1, sizes: []int32{2, 3}, kept: []*int32{ptr.To[int32](2), nil}, want: []int32{2, 0}},
	} {
		assert.Equal(t, test.want, ShareMaximum(test.maximum, test.sizes, test.kept), name)
	}
}

// The shares of random sizes add up to the maximum as far as there are instances, no share is larger
// than its size or than an earlier share with as much room, and a larger maximum lowers no share.
func TestSharesOfAMaximum(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(300, 3000)) {
		random := rand.New(rand.NewPCG(seed, 0))
		sizes := make([]int32, 1+random.IntN(6))
		for i := range sizes {
			sizes[i] = random.Int32N(8)
		}
		before := make([]int32, len(sizes))
		for maximum := range Total(sizes) + 3 {
			shares := ShareMaximum(maximum, sizes, nil)
			require.Equal(t, min(maximum, Total(sizes)), Total(shares), "seed %d: %d of %v is %v", seed, maximum, sizes, shares)
			for i := range shares {
				require.LessOrEqual(t, shares[i], sizes[i], "seed %d: %d of %v is %v", seed, maximum, sizes, shares)
				require.GreaterOrEqual(t, shares[i], before[i], "seed %d: %d of %v is %v", seed, maximum, sizes, shares)
				for j := range i {
					require.LessOrEqual(t, min(shares[i], sizes[j]), shares[j], "seed %d: %d of %v is %v", seed, maximum, sizes, shares)
					require.LessOrEqual(t, min(shares[j], sizes[i]), shares[i]+1, "seed %d: %d of %v is %v", seed, maximum, sizes, shares)
				}
			}
			before = shares
		}
		// The shares that a shard has already are the same when it keeps them.
		maximum, kept := random.Int32N(Total(sizes)+1), make([]*int32, len(sizes))
		shares := ShareMaximum(maximum, sizes, nil)
		for i := range kept {
			if random.IntN(2) == 0 {
				kept[i] = &shares[i]
			}
		}
		require.Equal(t, shares, ShareMaximum(maximum, sizes, kept), "seed %d: %d of %v with %v kept", seed, maximum, sizes, kept)
	}
}
