// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"cmp"
	"slices"
)

// Victim is an instance that somebody has chosen to go when there are to be
// fewer.
type Victim struct {
	// Shard is the index of its shard in the order in which shards are listed.
	Shard int
	// ID is that of the instance, "" for one that there is not yet.
	ID string
}

// Change changes sizes, which have one entry per shard, until they add up to
// replicas, and moves no instance without need: when there are to be more no
// shard gets fewer, and when there are to be fewer none gets more.
//
// What is too many is taken from the shards of victims, in the order in which
// they are given, as long as it lasts; those are chosen. What is too many beyond
// them comes one by one from the largest shard, of equal ones the one listed
// last. What is missing goes one by one to the smallest, of equal ones the one
// listed first. So sizes that are those of Even become those of Even, and others
// come nearer to them with every growth.
//
// Negative replicas count as none. A victim on a shard that is not listed, or
// has nothing left to give, is not chosen. Change does not write to its
// arguments.
func Change(sizes []int32, replicas int32, victims []Victim) (changed []int32, chosen []Victim) {
	changed = slices.Clone(sizes)
	if len(changed) == 0 {
		return changed, nil
	}
	missing := max(replicas, 0)
	for _, size := range changed {
		missing -= size
	}
	for _, victim := range victims {
		if missing < 0 && victim.Shard >= 0 && victim.Shard < len(changed) && changed[victim.Shard] > 0 {
			changed[victim.Shard]--
			missing++
			chosen = append(chosen, victim)
		}
	}
	switch {
	case missing > 0:
		fill(changed, missing)
	case missing < 0:
		// Taking from the largest is filling the smallest in a mirror.
		mirror(changed)
		fill(changed, -missing)
		mirror(changed)
	}
	return changed, chosen
}

// fill adds missing to sizes as if one by one to the smallest, of equal ones to
// the one listed first.
func fill(sizes []int32, missing int32) {
	order := make([]int, len(sizes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(sizes[a], sizes[b]) })
	for lowest := 1; missing > 0; lowest++ {
		// So many are equal now, and can take this much until the next one is, too.
		room := int64(missing)
		if lowest < len(order) {
			room = min(room, int64(lowest)*(int64(sizes[order[lowest]])-int64(sizes[order[0]])))
		}
		slices.Sort(order[:lowest])
		share, rest := room/int64(lowest), room%int64(lowest)
		for i, at := range order[:lowest] {
			sizes[at] += int32(share)
			if int64(i) < rest {
				sizes[at]++
			}
		}
		missing -= int32(room)
	}
}

// mirror turns the order around, and which sizes are large and which small.
func mirror(sizes []int32) {
	slices.Reverse(sizes)
	for i := range sizes {
		sizes[i] = -sizes[i]
	}
}
