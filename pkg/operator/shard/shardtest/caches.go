// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardtest

import (
	"maps"
	"slices"
	"strings"

	"nstance.dev/operator/pkg/operator/shard"
)

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

// ShardsWith implements shard.Groups.
func (g Groups) ShardsWith(key string) (ids []string) {
	g.shards.mu.Lock()
	defer g.shards.mu.Unlock()
	for id, s := range g.shards.ByID {
		if _, ok := s.Groups[key]; ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
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

// Observe implements shard.Groups. It keeps the instances of a cached group.
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
