// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"slices"
	"strings"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/distribute"
	"nstance.dev/operator/pkg/operator/shard"
)

// spreading is how the replicas of a pool are divided among its shards.
type spreading struct {
	sizes []int32
	// removeFirst are by shard the ids of the instances to remove before others.
	removeFirst [][]string
	// kept returns the value of AnnotationKept for a shard group, so that the next
	// sync has the same result.
	kept func(*shardState) string
}

// spread divides the replicas among the shards of a pool.
//
// A pool with Machines changes as little as possible, because its instances are
// selected one by one: it may become uneven, and stays uneven until it grows.
// keepsMachines reports whether it continues to have Machines. If not, its sizes stay.
//
// Other pools are divided evenly. A group that existed before its pool may be divided
// in another way. As long as the pool has as many replicas as were imported, on the
// same shards, every shard keeps its size: importing a group terminates no instance.
//
// A shard that is not configured keeps its size, which counts, so that the pool can be
// scaled on the others. When it is configured again, all sizes stay until the replicas
// change, as after an import.
func spread(observed observation, replicas int32, keepsMachines bool) spreading {
	shards := make([]distribute.Shard, len(observed.shards))
	for i := range observed.shards {
		shards[i] = observed.shards[i].distributeShard()
	}
	even, note := distribute.Spread(shards, replicas), keptNote(observed.pool, replicas)
	noted, unnoted := func(*shardState) string { return note }, func(*shardState) string { return "" }

	result, selected := spreading{sizes: even, kept: unnoted}, make([][]string, len(shards))
	if hasMachines(observed) {
		result.sizes, selected = distribute.Scale(shards, replicas, observed.candidates)
		switch {
		case keepsMachines:
			// A note from before has no effect and is not worth a write.
			result.kept = (*shardState).keptNote
		case !slices.Equal(result.sizes, even):
			result.kept = noted
		}
	} else if sizes := distribute.Sizes(shards); distribute.Total(sizes) == replicas && !slices.Equal(sizes, even) && keepsImported(observed, note) {
		result.sizes, result.kept = sizes, noted
	} else if !slices.Equal(even, distribute.Even(replicas, len(shards))) {
		// The sizes stay when the shard is configured again.
		result.kept = noted
	}
	for i := range shards {
		result.removeFirst = append(result.removeFirst, shards[i].NextRemoveFirst(result.sizes[i], selected[i]))
	}
	return result
}

// keepsImported reports whether the sizes of all shards are imported ones that stay:
// those on the servers, and those of shard groups with this note.
func keepsImported(observed observation, note string) bool {
	return !slices.ContainsFunc(observed.shards, func(shard shardState) bool {
		return shard.group == nil && !shard.synced || shard.group != nil && shard.keptNote() != note
	})
}

// keptNote returns the value of AnnotationKept for which imported sizes stay: it names
// the replicas and the shards.
func keptNote(pool *v1beta1.NstanceMachinePool, replicas int32) string {
	shards := make([]string, len(pool.Spec.Shards))
	for i, shard := range pool.Spec.Shards {
		shards[i] = string(shard)
	}
	return fmt.Sprintf("%d over %s", replicas, strings.Join(shards, ","))
}

// keptNote returns the AnnotationKept of the shard group, "" if there is none.
func (s *shardState) keptNote() string {
	if s.group == nil {
		return ""
	}
	return s.group.Annotations[v1beta1.AnnotationKept]
}

// currentSize returns the size of the shard group, or if there is none, the size on
// the server.
func (s *shardState) currentSize() int32 {
	if s.group == nil {
		return s.size
	}
	return s.group.Spec.Size
}

// currentSizes returns the current sizes by shard.
func currentSizes(shards []shardState) []int32 {
	sizes := make([]int32, len(shards))
	for i := range shards {
		sizes[i] = shards[i].currentSize()
	}
	return sizes
}

// distributeShard returns the shard as package distribute takes it.
func (s *shardState) distributeShard() distribute.Shard {
	converted := distribute.Shard{ID: s.id, Size: s.currentSize(), Fixed: !s.configured, HasShardGroup: s.group != nil, Synced: s.synced}
	if s.group != nil {
		converted.RemoveFirst = s.group.Spec.RemoveFirst
	}
	if s.reported != nil {
		converted.Reported = &distribute.Group{Size: s.reported.Size, ListsInstances: s.reported.ListsInstances}
		for _, instance := range s.reported.Instances {
			converted.Reported.Instances = append(converted.Reported.Instances, distribute.Instance{
				ID:          instance.ID,
				Pending:     instance.State == shard.InstancePending,
				Uncreated:   instance.State == shard.InstancePending && instance.ProviderID == "",
				Terminating: instance.State.IsTerminating(),
			})
		}
	}
	return converted
}
