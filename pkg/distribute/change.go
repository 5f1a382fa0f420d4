// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"math"
	"slices"
	"sort"
)

// Victim is an instance that somebody has chosen to go when there are to be
// fewer.
type Victim struct {
	// Shard is the index of its shard in the order in which shards are listed.
	Shard int
	// ID is that of the instance.
	ID string
}

// Change changes sizes, which have one entry per shard, until they add up to
// replicas, and moves no instance without need: when there are to be more no
// shard gets fewer, and when there are to be fewer none gets more.
//
// What is too many is taken from the shards of victims, in the order in which
// they are given, as long as it lasts; those are chosen. Beyond them it comes
// from shards that do not have all they are to have, as much as absent says by
// shard, and only then from what is there: each time one by one from the largest
// shard, of equal ones the one listed last. What is missing goes one by one to
// the smallest, of equal ones the one listed first. So sizes that are those of
// Even become those of Even, and others come nearer to them with every growth.
//
// Negative replicas count as none. A victim on a shard that is not listed, or
// has nothing left to give, is not chosen. A shard that absent has no entry for
// has everything. Change does not write to its arguments.
func Change(sizes []int32, replicas int32, victims []Victim, absent []int32) (changed []int32, chosen []Victim) {
	changed = slices.Clone(sizes)
	if len(changed) == 0 {
		return changed, nil
	}
	missing := max(replicas, 0)
	for _, size := range changed {
		missing -= size
	}
	if missing >= 0 {
		// Giving to the smallest is taking from the largest in a mirror.
		mirror(changed)
		take(changed, changed, missing)
		mirror(changed)
		return changed, nil
	}
	surplus := -missing
	for _, victim := range victims {
		if surplus > 0 && victim.Shard >= 0 && victim.Shard < len(changed) && changed[victim.Shard] > 0 {
			changed[victim.Shard]--
			surplus--
			chosen = append(chosen, victim)
		}
	}
	limits := make([]int32, len(changed))
	copy(limits, absent)
	surplus -= take(changed, limits, surplus)
	take(changed, changed, surplus)
	return changed, chosen
}

// take takes most from sizes as if one by one from the largest, of equal ones from
// the one listed last, and from none more than its limit or what it has. It
// returns how much it took.
func take(sizes, limits []int32, most int32) (taken int32) {
	// above is what one shard gives until its size is level.
	above := func(i, level int) int32 { return max(min(sizes[i]-int32(level), limits[i]), 0) }
	level := sort.Search(math.MaxInt32, func(level int) bool {
		var total int64
		for i := range sizes {
			total += int64(above(i, level))
		}
		return total <= int64(most)
	})
	given := make([]int32, len(sizes))
	for i := range sizes {
		given[i] = above(i, level)
		taken += given[i]
	}
	// What is left is less than one of each that could give another one.
	for i := len(sizes) - 1; i >= 0 && level > 0; i-- {
		if taken < most && above(i, level-1) > given[i] {
			given[i]++
			taken++
		}
	}
	for i := range sizes {
		sizes[i] -= given[i]
	}
	return taken
}

// mirror turns the order around, and which sizes are large and which small.
func mirror(sizes []int32) {
	slices.Reverse(sizes)
	for i := range sizes {
		sizes[i] = math.MaxInt32 - sizes[i]
	}
}
