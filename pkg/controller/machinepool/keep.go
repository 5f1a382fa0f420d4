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

// spread divides the replicas over the shards of a pool. A group that was there
// before its pool may be divided in another way than evenly. As long as the
// pool has as many replicas as were found, over the same shards, every shard
// keeps what it has: taking a group over ends no instance. kept is then what to
// note on the shard groups, so that the next sync comes to the same result.
func spread(seen observation, replicas int32) (sizes []int32, kept string) {
	sizes = distribute.Even(replicas, len(seen.shards))
	present := presentSizes(seen.shards)
	note := keptNote(seen.pool, replicas)
	if sum(present) != replicas || slices.Equal(present, sizes) {
		return sizes, ""
	}
	for _, shard := range seen.shards {
		if shard.group == nil && !shard.synced || shard.group != nil && shard.group.Annotations[v1beta1.AnnotationKept] != note {
			return sizes, ""
		}
	}
	return present, note
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
