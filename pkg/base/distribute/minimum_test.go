// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// withMinima sets the minima of shards.
func withMinima(shards []Shard, minima ...int32) []Shard {
	for i, least := range minima {
		shards[i].Min = least
		shards[i].Size = max(shards[i].Size, least)
	}
	return shards
}

func TestDivideKeepsMinima(t *testing.T) {
	for name, test := range map[string]struct {
		sizes, minima []int32
		fixed         []int
		replicas      int32
		want          []int32
	}{
		"a new pool":                      {[]int32{0, 0, 0}, []int32{3, 0, 0}, nil, 9, []int32{3, 3, 3}},
		"fewer replicas than equal parts": {[]int32{0, 0, 0}, []int32{3, 0, 0}, nil, 5, []int32{3, 1, 1}},
		"scaled down":                     {[]int32{3, 3, 3}, []int32{3, 0, 0}, nil, 4, []int32{3, 1, 0}},
		"scaled down to the minima":       {[]int32{3, 3, 3}, []int32{2, 1, 1}, nil, 4, []int32{2, 1, 1}},
		"scaled up from the minima":       {[]int32{2, 1, 1}, []int32{2, 1, 1}, nil, 6, []int32{2, 2, 2}},
		"a minimum was raised":            {[]int32{2, 2, 2}, []int32{4, 0, 0}, nil, 6, []int32{4, 1, 1}},
		"a fixed shard keeps its size":    {[]int32{2, 2, 2}, []int32{0, 1, 2}, []int{0}, 5, []int32{2, 1, 2}},
		"a fixed shard has too many":      {[]int32{5, 2, 2}, []int32{0, 1, 1}, []int{0}, 4, []int32{5, 1, 1}},
	} {
		for _, machines := range []bool{false, true} {
			division := Divide(Pool{Shards: fixed(withMinima(shardsOf(test.sizes, nil), test.minima...), test.fixed...), Replicas: test.replicas, Machines: machines})
			assert.Equal(t, test.want, division.Sizes, "%s, with Machines %t", name, machines)
		}
	}
}

// TestDivideWithMinimaProperties: for all sizes, minima and replicas, the sizes add up, no shard
// is below its minimum, no pool is less even than its minima demand, and the sizes do not depend
// on the steps that led to them.
func TestDivideWithMinimaProperties(t *testing.T) { withSeeds(t, testDivideWithMinimaProperties) }

func testDivideWithMinimaProperties(t *testing.T, random *rand.Rand) {
	for range 20000 {
		shards := make([]Shard, 1+random.IntN(5))
		var least int32
		for i := range shards {
			shards[i] = Shard{HasShardGroup: true, Min: random.Int32N(4)}
			shards[i].Size = shards[i].Min + random.Int32N(6)
			least += shards[i].Min
		}
		pool := Pool{Shards: shards, Replicas: least + random.Int32N(20), Machines: random.IntN(2) == 0}
		division := Divide(pool)
		require.Equal(t, pool.Replicas, Total(division.Sizes), "%+v", pool)
		for i := range shards {
			require.GreaterOrEqual(t, division.Sizes[i], shards[i].Min, "%+v", pool)
			if pool.Machines && pool.Replicas <= Total(Sizes(shards)) {
				require.LessOrEqual(t, division.Sizes[i], shards[i].Size, "a scale-down grows a shard: %+v", pool)
			}
		}
		before := Sizes(shards)
		for i, size := range division.Sizes {
			shards[i].Size = size
		}
		require.True(t, pool.Machines || areEven(shards), "%v: %+v", division.Sizes, pool)
		require.Equal(t, division.Sizes, Divide(pool).Sizes, "again, from %v: %+v", before, pool)
	}
}

// TestOrderMovesNothing: another order of the shards moves no instance, and neither does a change
// of the replicas move more instances than it adds or removes.
func TestOrderMovesNothing(t *testing.T) { withSeeds(t, testOrderMovesNothing) }

func testOrderMovesNothing(t *testing.T, random *rand.Rand) {
	for range 2000 {
		count, replicas := 1+random.IntN(6), random.Int32N(30)
		sizes := even(replicas, count)
		random.Shuffle(count, func(i, j int) { sizes[i], sizes[j] = sizes[j], sizes[i] })
		pool := Pool{Shards: shardsOf(sizes, nil), Replicas: replicas}
		division := Divide(pool)
		require.Equal(t, sizes, division.Sizes)
		require.False(t, division.Uneven, "%v", sizes)

		pool.Replicas = random.Int32N(30)
		var moved int32
		next := Divide(pool).Sizes
		for i := range next {
			moved += max(next[i]-sizes[i], sizes[i]-next[i])
		}
		require.Equal(t, max(pool.Replicas-replicas, replicas-pool.Replicas), moved, "from %v to %v", sizes, next)
	}
}

// The sizes stay when a minimum is lowered: nobody has asked for fewer instances on the shard.
func TestLoweredMinimumMovesNothing(t *testing.T) {
	pool := Pool{Shards: withMinima(shardsOf([]int32{4, 1}, nil), 4, 1), Replicas: 5}
	division := Divide(pool)
	assert.True(t, division.Uneven)
	pool.Imported, pool.Shards[0].Min = true, 1
	assert.Equal(t, []int32{4, 1}, Divide(pool).Sizes)
}

func TestKept(t *testing.T) {
	shards := withMinima(shardsOf([]int32{2, 3}, nil), 1, 3)
	for name, test := range map[string]struct {
		replicas   int32
		candidates []Candidate
		want       string
	}{
		"one above the minimum":         {4, candidatesOn(0), ""},
		"one of a shard at its minimum": {4, candidatesOn(1), "1-0"},
		"one too many":                  {3, candidatesOn(0, 0), "0-1"},
		"one that stays":                {5, candidatesOn(1), ""},
		"fewer removed than selected":   {4, candidatesOn(0, 0), ""},
	} {
		got := Kept(shards, test.replicas, test.candidates)
		if test.want == "" {
			assert.Nil(t, got, name)
		} else if assert.NotNil(t, got, name) {
			assert.Equal(t, test.want, got.ID, name)
		}
	}
}

// A shard without capacity keeps its minimum: it lends only what it has beyond.
func TestLendKeepsMinima(t *testing.T) {
	shards := shardsOf([]int32{3, 3}, []int32{0, 0})
	for i := range shards {
		shards[i].Stock.Usable = true
	}
	shards[0].Reported.Instances = nil
	shards[0].Stock.Missing, shards[0].Stock.Due = 3, true
	withMinima(shards, 2, 0)
	division := Divide(Pool{Shards: shards, Replicas: 6, MayMove: true})
	assert.Equal(t, []int32{2, 4}, division.Sizes)
	assert.Equal(t, []int32{1, -1}, division.Lent)
	shards[0].Min = 3
	assert.False(t, Divide(Pool{Shards: shards, Replicas: 6, MayMove: true}).Moved)
}

// An instance that Cluster API has drained while the pool is deleted does not take a shard below
// its minimum, because its server would refuse the size.
func TestRemoveDrainedKeepsTheMinimum(t *testing.T) {
	shard := withMinima(shardsOf([]int32{3}, []int32{0}), 2)[0]
	size, removeFirst := shard.RemoveDrained([]string{"0-0", "0-1"})
	assert.EqualValues(t, 2, size)
	assert.True(t, slices.Equal(removeFirst, []string{"0-0"}), "%q", removeFirst)
}
