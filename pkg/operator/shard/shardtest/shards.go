// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package shardtest fakes the shards as controllers see them: a set of shards, the
// calls to their servers, and the caches of what they report.
package shardtest

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"nstance.dev/operator/pkg/operator/shard"
)

// Shards implements shard.Set and shard.Client; Groups and Notices return its
// caches. Tests read and write its fields directly, or by Update while a
// controller runs.
type Shards struct {
	// ByID are the configured shards.
	ByID map[string]*Shard
	// Fail is the error of each call, by the first word of its description in Calls,
	// such as "upsert" or "create".
	Fail map[string]error
	// OnUpsert replaces the reply to UpsertGroup. By default the group gets the
	// configuration.
	OnUpsert func(id, key string, config shard.GroupConfig) (shard.Group, error)
	// OnDelete replaces the reply to DeleteGroup, which succeeds by default.
	OnDelete func(id, key string, revision *shard.Revision) error
	// OnCreate is called before each call of CreateInstance, without the lock.
	OnCreate func(id, requestID string)
	// OnCall is called before each call, without the lock, with its description.
	OnCall func(call string)

	mu             sync.Mutex
	calls          []string
	acknowledged   []string
	handlers       []func(string)
	groupHandlers  []shard.GroupHandler
	noticeHandlers []shard.NoticeHandler
}

// Shard is the state of one shard.
type Shard struct {
	// Synced, Reachable and Settled are what the caches report of the shard, and
	// Lost is the reason while it is not reachable.
	Synced, Reachable, Settled bool
	Lost                       error
	// Unlisted is set while the list that Relist requested has not succeeded.
	Unlisted bool
	// Session is the number of the watch of notices.
	Session int64
	// Groups are the cached groups by key.
	Groups map[string]shard.Group
	// Notices are the cached deletion notices by instance id.
	Notices map[string]shard.DeletionNotice
	// Instances are the instances of the server by id.
	Instances map[string]shard.Instance
	// Deleted is what DeleteInstance returns for an instance that exists.
	Deleted bool
	// Requests are the ids of instances by the id of the request that created them.
	Requests map[string]string
}

var (
	_ shard.Set     = (*Shards)(nil)
	_ shard.Client  = (*Shards)(nil)
	_ shard.Groups  = Groups{}
	_ shard.Notices = Notices{}
)

// New returns shards that are configured, connected and synced, without groups.
func New(ids ...string) *Shards {
	s := &Shards{ByID: map[string]*Shard{}, Fail: map[string]error{}}
	for _, id := range ids {
		s.ByID[id] = NewShard()
	}
	return s
}

// NewShard returns a shard that is connected and synced, without groups.
func NewShard() *Shard {
	return &Shard{
		Synced: true, Reachable: true, Settled: true,
		Groups:    map[string]shard.Group{},
		Notices:   map[string]shard.DeletionNotice{},
		Instances: map[string]shard.Instance{},
		Requests:  map[string]string{},
	}
}

// Update runs change with the lock that the caches and calls use.
func (s *Shards) Update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// SetGroup puts group into the cache of a shard. No handler is called.
func (s *Shards) SetGroup(id string, group shard.Group) {
	s.Update(func() { s.ByID[id].Groups[group.Key] = group })
}

// Calls returns the calls since it was called last, such as "upsert workers on a".
func (s *Shards) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// Acknowledged returns the ids of the instances whose drains were acknowledged, in
// order.
func (s *Shards) Acknowledged() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.acknowledged)
}

// Has implements shard.Set.
func (s *Shards) Has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ByID[id] != nil
}

// Shards implements shard.Set.
func (s *Shards) Shards() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.ByID))
}

// AddHandler implements shard.Set.
func (s *Shards) AddHandler(handler func(string)) { s.handlers = append(s.handlers, handler) }

// NotifyShard calls the handlers as when the connection of a shard changed.
func (s *Shards) NotifyShard(id string) {
	for _, handler := range s.handlers {
		handler(id)
	}
	for _, handler := range s.groupHandlers {
		if handler.OnShard != nil {
			handler.OnShard(id)
		}
	}
	for _, handler := range s.noticeHandlers {
		if handler.OnShard != nil {
			handler.OnShard(id)
		}
	}
}

// NotifyGroup calls the handlers as when a cached group changed.
func (s *Shards) NotifyGroup(id, key string) {
	for _, handler := range s.groupHandlers {
		if handler.OnGroup != nil {
			handler.OnGroup(id, key)
		}
	}
}

// NotifyError calls the handlers as when a shard reported an error.
func (s *Shards) NotifyError(id string, event shard.ErrorEvent) {
	for _, handler := range s.groupHandlers {
		if handler.OnError != nil {
			handler.OnError(id, event)
		}
	}
}

// NotifyInstance calls the handlers as when a notice of an instance arrived.
func (s *Shards) NotifyInstance(id, instance string) {
	for _, handler := range s.noticeHandlers {
		if handler.OnInstance != nil {
			handler.OnInstance(id, instance)
		}
	}
}

// Groups returns the cache of groups.
func (s *Shards) Groups() Groups { return Groups{s} }

// Groups is the cache of the groups of fake shards.
type Groups struct{ shards *Shards }

// Get implements shard.Groups.
func (g Groups) Get(id, key string) (group shard.Group, ok bool) {
	g.read(id, func(s *Shard) { group, ok = s.Groups[key] })
	return group, ok
}

// List implements shard.Groups.
func (g Groups) List(id string) (groups []shard.Group) {
	g.read(id, func(s *Shard) { groups = slices.Collect(maps.Values(s.Groups)) })
	slices.SortFunc(groups, func(a, b shard.Group) int { return strings.Compare(a.Key, b.Key) })
	return groups
}

// HasSynced implements shard.Groups.
func (g Groups) HasSynced(id string) (synced bool) {
	g.read(id, func(s *Shard) { synced = s.Synced })
	return synced
}

// Reachable implements shard.Groups.
func (g Groups) Reachable(id string) (reachable bool, reason error) {
	g.read(id, func(s *Shard) { reachable, reason = s.Reachable, s.Lost })
	return reachable, reason
}

// Relist implements shard.Groups.
func (g Groups) Relist(string) (mark uint64) { return 0 }

// ListedSince implements shard.Groups.
func (g Groups) ListedSince(id string, _ uint64) (listed bool) {
	g.read(id, func(s *Shard) { listed = !s.Unlisted })
	return listed
}

// Observe implements shard.Groups: the instances of a cached group stay.
func (g Groups) Observe(id string, group shard.Group) {
	g.read(id, func(s *Shard) {
		if cached, ok := s.Groups[group.Key]; ok {
			group.ActualSize, group.ProviderIDs = cached.ActualSize, cached.ProviderIDs
			group.ListsInstances, group.Instances = cached.ListsInstances, cached.Instances
		}
		s.Groups[group.Key] = group
	})
}

// AddHandler implements shard.Groups.
func (g Groups) AddHandler(handler shard.GroupHandler) {
	g.shards.groupHandlers = append(g.shards.groupHandlers, handler)
}

func (g Groups) read(id string, do func(*Shard)) {
	g.shards.mu.Lock()
	defer g.shards.mu.Unlock()
	if s := g.shards.ByID[id]; s != nil {
		do(s)
	}
}

// Notices returns the cache of deletion notices.
func (s *Shards) Notices() Notices { return Notices{s} }

// Notices is the cache of the deletion notices of fake shards.
type Notices struct{ shards *Shards }

// Get implements shard.Notices.
func (n Notices) Get(id, instance string) (notice shard.DeletionNotice, ok bool) {
	n.shards.Groups().read(id, func(s *Shard) { notice, ok = s.Notices[instance] })
	return notice, ok
}

// List implements shard.Notices.
func (n Notices) List(id string) (notices []shard.DeletionNotice) {
	n.shards.Groups().read(id, func(s *Shard) { notices = slices.Collect(maps.Values(s.Notices)) })
	slices.SortFunc(notices, func(a, b shard.DeletionNotice) int { return strings.Compare(a.InstanceID, b.InstanceID) })
	return notices
}

// Settled implements shard.Notices.
func (n Notices) Settled(id string) (settled bool) {
	n.shards.Groups().read(id, func(s *Shard) { settled = s.Settled })
	return settled
}

// Session implements shard.Notices.
func (n Notices) Session(id string) (session int64) {
	n.shards.Groups().read(id, func(s *Shard) { session = s.Session })
	return session
}

// AddHandler implements shard.Notices.
func (n Notices) AddHandler(handler shard.NoticeHandler) {
	n.shards.noticeHandlers = append(n.shards.noticeHandlers, handler)
}
