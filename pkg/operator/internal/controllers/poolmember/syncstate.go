// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"nstance.dev/operator/pkg/operator/shard"
)

// syncState is what one sync of a pool leaves for the next. All of it may be lost.
type syncState struct {
	// shardOf has the shard of each instance that has or had an nstanceMachine, by
	// instance id. Ids are never used again. One is dropped once the nstanceMachine was
	// deleted and the shard no longer lists the instance.
	shardOf map[string]string
	// orphanedSince is when each Machine was first seen without its nstanceMachine.
	orphanedSince map[types.UID]time.Time
	// reportedConflicts are the ids of instances for whose name conflict the pool has
	// an event.
	reportedConflicts sets.Set[string]
}

// syncStates are those of all pools, by uid. The zero value is empty.
type syncStates struct {
	mu     sync.Mutex
	byPool map[types.UID]syncState
}

// update calls change with the state of a pool and mu locked.
func (s *syncStates) update(pool types.UID, change func(*syncState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state, ok := s.byPool[pool]
	if !ok {
		state = syncState{shardOf: map[string]string{}, reportedConflicts: sets.New[string]()}
	}
	change(&state)
	if len(state.shardOf)+len(state.orphanedSince)+len(state.reportedConflicts) == 0 {
		delete(s.byPool, pool)
		return
	}
	if s.byPool == nil {
		s.byPool = make(map[types.UID]syncState)
	}
	s.byPool[pool] = state
}

// get returns a copy of the state of a pool, without reportedConflicts.
func (s *syncStates) get(pool types.UID) syncState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return syncState{shardOf: maps.Clone(s.byPool[pool].shardOf), orphanedSince: s.byPool[pool].orphanedSince}
}

// anyNew reports whether one of instances never had an nstanceMachine, and is not
// being terminated.
func (s *syncStates) anyNew(pool types.UID, instances []shard.Instance) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(instances, func(instance shard.Instance) bool {
		_, had := s.byPool[pool].shardOf[instance.ID]
		return !had && !instance.State.IsTerminating()
	})
}

// addInstance records that an instance of a shard has an nstanceMachine.
func (s *syncStates) addInstance(pool types.UID, id, shard string) {
	s.update(pool, func(state *syncState) { state.shardOf[id] = shard })
}

// dropInstances drops the instances for which drop returns true.
func (s *syncStates) dropInstances(pool types.UID, drop func(id, shard string) bool) {
	s.update(pool, func(state *syncState) { maps.DeleteFunc(state.shardOf, drop) })
}

// setOrphaned replaces the times since which Machines have had no nstanceMachine.
func (s *syncStates) setOrphaned(pool types.UID, since map[types.UID]time.Time) {
	s.update(pool, func(state *syncState) { state.orphanedSince = since })
}

// setConflicts replaces the ids whose names are in use, and returns the new ones.
func (s *syncStates) setConflicts(pool types.UID, ids []string) (added []string) {
	s.update(pool, func(state *syncState) {
		for _, id := range ids {
			if !state.reportedConflicts.Has(id) {
				added = append(added, id)
			}
		}
		state.reportedConflicts = sets.New(ids...)
	})
	return added
}

// drop drops the state of a pool.
func (s *syncStates) drop(pool types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byPool, pool)
}
