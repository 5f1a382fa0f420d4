// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package instances holds all that a shard knows of its instances: their records
// in the storage, what the provider sees of them, and what has been decided
// about them.
//
// The record is the only durable part. It is written before the provider is
// asked for the instance and removed after the provider has said that the
// instance is gone, so that whatever is left of a crash can be finished (server
// document). Drains and deletions are in the cache only: a server that has lost
// them decides anew. A deletion that a caller asked for cannot be decided anew, and
// is part of the record.
package instances

import (
	"errors"
	"slices"
	"sync"

	"k8s.io/utils/clock"
	"k8s.io/utils/keymutex"

	"nstance.dev/operator/pkg/server/cache"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
)

// Errors that callers tell apart. What a Store returns wraps them, together with
// the id.
var (
	// ErrUnknown: no instance has the id, or it is gone.
	ErrUnknown = errors.New("no such instance")
	// ErrExists: an instance has, or had, the id.
	ErrExists = errors.New("instance exists already")
)

// writers is how many changes may wait for the storage at the same time, if no
// two are of one instance.
const writers = 256

// Options are what a Store is made of. All but Stale are mandatory.
type Options struct {
	Storage  storage.Store
	Cache    *cache.DB
	Provider instance.Provider
	// Shard is the shard's id.
	Shard string
	Clock clock.PassiveClock
	// Stale says that another server may have led the shard since the cache was
	// written. What it says of drains and deletions is dropped then: they may
	// have been overtaken, and an old drain whose time is up would end an
	// instance that nobody was told of. What the records say stays.
	Stale bool
}

// Store is what is known of a shard's instances. It is safe for use by several
// goroutines. Reads are answered from memory, also while a change is stored;
// changes of one instance are made one after the other. What a method returns
// shares memory with the store and must not be changed.
type Store struct {
	storage  storage.Store
	cache    *cache.DB
	provider instance.Provider
	shard    string
	clock    clock.PassiveClock

	// writing serialises the changes of an instance, by its id.
	writing keymutex.KeyMutex

	// mu guards index. Nobody waits for anything while holding it.
	mu    sync.RWMutex
	index *index
}

// entry returns what is known of an instance.
func (s *Store) entry(id string) (entry, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index.get(id)
}

// List returns the instances of a group, on-demand ones too, that are not gone:
// the oldest first, by CreatedAt and then by ID. An instance of the provider
// that has no record is listed once it was adopted.
func (s *Store) List(key instance.GroupKey) []instance.Instance {
	s.mu.RLock()
	entries := s.index.group(key)
	s.mu.RUnlock()
	return s.views(entries)
}

// Get returns an instance, also one that is gone, until that is forgotten. It
// returns false when there is none.
func (s *Store) Get(id string) (instance.Instance, bool) {
	e, found := s.entry(id)
	if !found {
		return instance.Instance{}, false
	}
	return s.view(e), true
}

// ByIdempotencyKey returns the instance that a caller of the tenant has ordered
// with the key, as Get does.
func (s *Store) ByIdempotencyKey(tenant, key string) (instance.Instance, bool) {
	s.mu.RLock()
	e, found := s.index.ordered(tenant, key)
	s.mu.RUnlock()
	if !found {
		return instance.Instance{}, false
	}
	return s.view(e), true
}

// Draining returns the instances of a tenant that drain and that the provider
// was not told to end yet, in the order in which their drains began.
func (s *Store) Draining(tenant string) []instance.Instance {
	s.mu.RLock()
	entries := s.index.draining(tenant)
	s.mu.RUnlock()
	slices.SortFunc(entries, func(a, b entry) int {
		return a.row.Drain.StartedAt.Compare(b.row.Drain.StartedAt)
	})
	return s.views(entries)
}

// Keys returns, in order, the groups that have instances: of those that are not
// gone, and of those that only the provider knows.
func (s *Store) Keys() []instance.GroupKey {
	s.mu.RLock()
	keys := s.index.keys()
	s.mu.RUnlock()
	keys = append(keys, s.provider.Groups()...)
	slices.SortFunc(keys, instance.GroupKey.Compare)
	return slices.Compact(keys)
}

func (s *Store) views(entries []entry) []instance.Instance {
	instances := make([]instance.Instance, len(entries))
	for i, e := range entries {
		instances[i] = s.view(e)
	}
	return instances
}

// view merges what is stored of an instance with what the provider sees.
func (s *Store) view(e entry) instance.Instance {
	i := instance.Instance{
		Record:       e.row.Record,
		Drain:        e.row.Drain,
		DeleteReason: e.row.DeleteReason,
		DeletedAt:    e.row.DeletedAt,
	}
	if e.gone() {
		i.State = instance.Missing
		return i
	}
	vm, known := s.provider.Get(i.ID)
	switch {
	case known:
		e.seen.Store(true)
		i.Known, i.State = true, vm.State
	case (i.ProviderID != "" || e.seen.Load()) && s.synced():
		i.State = instance.Missing
	default:
		i.State = instance.Pending
	}
	return i
}

// synced tells whether the provider knows all instances. Until then none is
// missing for being unknown.
func (s *Store) synced() bool {
	select {
	case <-s.provider.Synced():
		return true
	default:
		return false
	}
}
