// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"slices"
	"strings"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/distribute"
)

// spreading is how the replicas of a pool are divided over its shards.
type spreading struct {
	sizes []int32
	// chosen are the instances by shard that are to go.
	chosen [][]string
	// kept is what to note on a shard group, so that the next sync comes to the
	// same result.
	kept func(*shardState) string
}

// spread divides the replicas over the shards of a pool.
//
// A pool with Machines changes as little as it can, because its instances are
// chosen one by one: it may become uneven, and stays so until it grows. machines
// tells whether it goes on having them. When it does not, what it has stays.
//
// Others are divided evenly. A group that was there before its pool may be divided
// in another way. As long as the pool has as many replicas as were found, over the
// same shards, every shard keeps what it has: taking a group over ends no
// instance.
func spread(seen observation, replicas int32, machines bool) spreading {
	present := presentSizes(seen.shards)
	result := spreading{
		sizes:  distribute.Even(replicas, len(seen.shards)),
		chosen: make([][]string, len(seen.shards)),
		kept:   func(*shardState) string { return "" },
	}
	note := keptNote(seen.pool, replicas)
	if hasMachines(seen.pool) {
		even, absences := result.sizes, absences(seen.shards, seen.victims)
		absent := make([]int32, len(absences))
		for i, absence := range absences {
			absent[i] = absence.count()
		}
		var victims []distribute.Victim
		result.sizes, victims = distribute.Change(present, replicas, seen.victims, absent)
		for _, victim := range victims {
			result.chosen[victim.Shard] = append(result.chosen[victim.Shard], victim.ID)
		}
		for i, size := range result.sizes {
			fewer := present[i] - size - int32(len(result.chosen[i]))
			result.chosen[i] = append(result.chosen[i], absences[i].first(fewer)...)
		}
		switch {
		case machines:
			// What was noted before says nothing now, and is not worth a write.
			result.kept = (*shardState).note
		case !slices.Equal(result.sizes, even):
			result.kept = func(*shardState) string { return note }
		}
		return result
	}
	if sum(present) != replicas || slices.Equal(present, result.sizes) {
		return result
	}
	for _, shard := range seen.shards {
		if shard.group == nil && !shard.synced || shard.group != nil && shard.note() != note {
			return result
		}
	}
	result.sizes, result.kept = present, func(*shardState) string { return note }
	return result
}

// note is what is noted on a shard group, "" when there is none.
func (s *shardState) note() string {
	if s.group == nil {
		return ""
	}
	return s.group.Annotations[v1beta1.AnnotationKept]
}

// keptNote says for which replicas and shards the sizes that were found stay.
func keptNote(pool *v1beta1.NstanceMachinePool, replicas int32) string {
	shards := make([]string, len(pool.Spec.Shards))
	for i, shard := range pool.Spec.Shards {
		shards[i] = string(shard)
	}
	return fmt.Sprintf("%d over %s", replicas, strings.Join(shards, ","))
}

// presentSizes are the sizes by shard that hold now: what its shard group asks
// for, or, before there is one, what the server has.
func presentSizes(shards []shardState) []int32 {
	sizes := make([]int32, len(shards))
	for i, shard := range shards {
		sizes[i] = shard.size
		if shard.group != nil {
			sizes[i] = shard.group.Spec.Size
		}
	}
	return sizes
}

func sum(sizes []int32) int32 {
	var total int32
	for _, size := range sizes {
		total += size
	}
	return total
}
