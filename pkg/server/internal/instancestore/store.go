// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package instancestore keeps the state of a shard's instances: their records in the storage,
// the provider's reports, and the server's decisions.
//
// Only the record is durable. It is written before the instance is created at
// the provider and removed after the provider has confirmed the deletion, so
// that the next server can finish what a crash interrupted
// (docs/server.md#records). Drains and deletions are only in the cache: a
// server that has lost them decides again. A deletion that a client requested
// cannot be derived again and is part of the record.
package instancestore

import (
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"k8s.io/utils/keymutex"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/cache"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/storage"
)

// Errors for callers to distinguish. A Store returns them wrapped, together
// with the id.
var (
	// ErrUnknown means that no instance has the id, or that it was deleted.
	ErrUnknown = errors.New("no such instance")
	// ErrExists means that the id is or was in use.
	ErrExists = errors.New("instance exists already")
)

// writers is the number of locks for the changes of instances, and so the
// maximum number of concurrent changes.
const writers = 256

// Agents has the states of the instances' agents.
type Agents interface {
	// State returns the state of the agent of an instance that runs.
	State(record *instance.Record) instance.Agent
}

// Options configure a Store. All fields but Stale, Agents and Outdated are required.
type Options struct {
	Storage  storage.Store
	Cache    *cache.DB
	Provider provider.Provider
	// Shard is the id of the shard.
	Shard string
	Clock clock.PassiveClock
	// Agents is nil if the instances run no agents.
	Agents Agents
	// Stale is true when another server may have led the shard since the cache
	// was written. Open then drops the cached drains and deletions, which may
	// be outdated: an expired drain would delete an instance that was never
	// reported as draining. The records are not affected.
	Stale bool
	// Outdated is called when another writer has changed or removed a record, so that the
	// state of the Store is outdated. It is optional.
	Outdated func(error)
}

// Store keeps the instances of a shard. It is safe for concurrent use. Reads
// are answered from memory, even while a change is being stored. Changes of one
// instance are serialized. Returned values share memory with the store and must
// not be modified.
type Store struct {
	storage  storage.Store
	cache    *cache.DB
	provider provider.Provider
	shard    string
	clock    clock.PassiveClock
	agents   Agents
	outdated func(error)
	// damaged has the etags of the records that could not be decoded, by their keys. It does
	// not change after Open.
	damaged map[string]string

	// writing serializes the changes of an instance by its id.
	writing keymutex.KeyMutex

	// mu guards index. It is never locked during a call to the storage, the
	// cache or the provider.
	mu    sync.RWMutex
	index *index
}

// entry returns the entry of an instance.
func (s *Store) entry(id string) (entry, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index.get(id)
}

// List returns the instances of a group that are not deleted, including on-demand instances,
// ordered by CreatedAt and ID. Instances that only the provider knows are listed once they
// were adopted.
func (s *Store) List(key instance.GroupKey) []instance.Instance {
	s.mu.RLock()
	entries := s.index.group(key)
	s.mu.RUnlock()
	return s.observeAll(entries)
}

// Get returns an instance. A deleted instance is returned until it is purged.
func (s *Store) Get(id string) (instance.Instance, bool) {
	e, found := s.entry(id)
	if !found {
		return instance.Instance{}, false
	}
	var i instance.Instance
	s.observe(e, &i)
	return i, true
}

// ByIdempotencyKey returns the instance that a client of the tenant has created with the key,
// also if it was deleted but not purged yet.
func (s *Store) ByIdempotencyKey(tenant, key string) (instance.Instance, bool) {
	s.mu.RLock()
	e, found := s.index.byIdempotencyKey(tenant, key)
	s.mu.RUnlock()
	if !found {
		return instance.Instance{}, false
	}
	var i instance.Instance
	s.observe(e, &i)
	return i, true
}

// OnDemand returns what the on-demand instances of a tenant need.
func (s *Store) OnDemand(tenant string) Usage {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index.onDemand[tenant]
}

// CreatedAfter returns how many on-demand instances of a tenant were created after a time, also
// those that were deleted and are not purged yet. A server remembers only the deletions that it
// was the leader for.
func (s *Store) CreatedAfter(tenant string, after time.Time) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index.createdAfter(tenant, after)
}

// Draining returns the draining instances of a tenant that are not being
// terminated yet, in the order in which their drains began.
func (s *Store) Draining(tenant string) []instance.Instance {
	s.mu.RLock()
	entries := s.index.draining(tenant)
	s.mu.RUnlock()
	slices.SortFunc(entries, func(a, b entry) int {
		return a.row.Drain.StartedAt.Compare(b.row.Drain.StartedAt)
	})
	return s.observeAll(entries)
}

// Recorded returns the keys of the groups that have instances with a record, in no
// particular order.
func (s *Store) Recorded() []instance.GroupKey {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index.keys()
}

// Former returns the instances that are not deleted. They have a provider id if it is in
// their records.
func (s *Store) Former() []instance.VM {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var vms []instance.VM
	for _, e := range s.index.byID {
		if r := &e.row.Record; !e.isDeleted() {
			vms = append(vms, instance.VM{ID: r.ID, ProviderID: r.ProviderID, Group: r.Key(), Origin: r.Origin()})
		}
	}
	return vms
}

// Keys returns the keys of all groups that have instances, in order. They
// include groups of instances that only the provider knows.
func (s *Store) Keys() []instance.GroupKey {
	keys := append(s.Recorded(), s.provider.Groups()...)
	slices.SortFunc(keys, instance.GroupKey.Compare)
	return slices.Compact(keys)
}

// observeAll observes several instances, in the order of entries.
func (s *Store) observeAll(entries []entry) []instance.Instance {
	instances := make([]instance.Instance, len(entries))
	for i, e := range entries {
		s.observe(e, &instances[i])
	}
	return instances
}

// observe sets i to the stored state of an instance combined with the provider's report. It
// records the report in e, because the state of an instance that is not listed depends on
// earlier reports.
func (s *Store) observe(e entry, i *instance.Instance) {
	*i = instance.Instance{
		Record:       e.row.Record,
		Drain:        e.row.Drain,
		DeleteReason: e.row.DeleteReason,

		DeletionRequest: e.row.DeletionRequest,
		DeletedAt:       e.row.DeletedAt,
	}
	if e.isDeleted() {
		i.State = instance.Missing
		return
	}
	if vm, listed := s.provider.Get(i.ID); listed {
		e.recordReport(vm)
		i.Known, i.State, i.StateReason, i.Unlisted = true, vm.State, vm.Reason, vm.Unlisted
		i.Addresses, i.Hostname, i.MayReturn = vm.Addresses, vm.Hostname, vm.MayReturn
		if vm.Origin.InfraConfigHash != "" {
			// The record may have been written before the configuration changed from
			// which the instance was created.
			i.InfraConfigHash = vm.Origin.InfraConfigHash
		}
		s.applyAgent(i)
	} else {
		i.State = s.unlistedState(e)
	}
	i.Found, i.Stopped = e.found.Load(), e.stopped.Load()
}

// unlistedState returns the state of an instance that the provider does not list: Missing if
// the provider has listed it before, unless it only needs a new request.
func (s *Store) unlistedState(e entry) instance.State {
	if renewer, ok := s.provider.(provider.Renewer); ok && e.row.Record.ProviderID == "" && renewer.Renews(e.row.Record.ID) {
		return instance.Pending
	}
	if (e.row.Record.ProviderID != "" || e.seen.Load()) && s.synced() {
		return instance.Missing
	}
	return instance.Pending
}

// applyAgent adds the state of the agent of an instance. The instance counts as running only
// once its agent has reported, and as impaired when the agent is lost.
func (s *Store) applyAgent(i *instance.Instance) {
	if s.agents == nil {
		return
	}
	switch i.State {
	case instance.Pending:
		i.Agent.State = instance.AgentAwaited
		return
	case instance.Running, instance.Impaired:
		i.Agent = s.agents.State(&i.Record)
	default:
		return
	}
	switch {
	case i.State == instance.Impaired:
	case i.Agent.State == instance.AgentAwaited:
		i.State = instance.Pending
	case i.Agent.State == instance.AgentLost:
		i.State = instance.Impaired
	}
}

// synced reports whether the provider knows all instances. Until then, an instance that it
// does not list is not missing.
func (s *Store) synced() bool {
	select {
	case <-s.provider.Synced():
		return true
	default:
		return false
	}
}
