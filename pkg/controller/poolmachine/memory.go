// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"nstance.dev/operator/pkg/shard"
)

// memory is what is remembered of a pool from one sync to the next. All of it may
// be lost.
type memory struct {
	// had has the shard of each instance that has or had a member, by id. Ids are
	// never used again. One is forgotten when the member is gone and the shard no
	// longer lists the instance.
	had map[string]string
	// sighted is since when which Machines have had no NstanceMachine.
	sighted map[types.UID]time.Time
	// told are the ids of instances whose name is taken, of which the pool has an
	// event.
	told sets.Set[string]
}

// memories are those of all pools, by uid. The zero value is empty.
type memories struct {
	mu sync.Mutex
	of map[types.UID]memory
}

// change has a pool's memory changed, with the lock held.
func (m *memories) change(pool types.UID, change func(*memory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed, ok := m.of[pool]
	if !ok {
		changed = memory{had: map[string]string{}, told: sets.New[string]()}
	}
	change(&changed)
	if len(changed.had)+len(changed.sighted)+len(changed.told) == 0 {
		delete(m.of, pool)
		return
	}
	if m.of == nil {
		m.of = make(map[types.UID]memory)
	}
	m.of[pool] = changed
}

// get returns a copy of a pool's memory, without what it was told.
func (m *memories) get(pool types.UID) memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return memory{had: maps.Clone(m.of[pool].had), sighted: m.of[pool].sighted}
}

// lacks tells whether one of instances has never had a member and does not end.
func (m *memories) lacks(pool types.UID, instances []shard.Instance) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(instances, func(instance shard.Instance) bool {
		_, had := m.of[pool].had[instance.ID]
		return !had && !instance.State.Ends()
	})
}

// remember notes that an instance of a shard has a member.
func (m *memories) remember(pool types.UID, id, shard string) {
	m.change(pool, func(memory *memory) { memory.had[id] = shard })
}

// forget drops the ids that are to be forgotten.
func (m *memories) forget(pool types.UID, forgotten func(id, shard string) bool) {
	m.change(pool, func(memory *memory) { maps.DeleteFunc(memory.had, forgotten) })
}

// sight replaces since when which Machines have had no NstanceMachine.
func (m *memories) sight(pool types.UID, sighted map[types.UID]time.Time) {
	m.change(pool, func(memory *memory) { memory.sighted = sighted })
}

// tell replaces the ids whose names are taken, and returns those that are new.
func (m *memories) tell(pool types.UID, taken []string) (untold []string) {
	m.change(pool, func(memory *memory) {
		for _, id := range taken {
			if !memory.told.Has(id) {
				untold = append(untold, id)
			}
		}
		memory.told = sets.New(taken...)
	})
	return untold
}

// drop forgets a pool.
func (m *memories) drop(pool types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.of, pool)
}
