// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package informer keeps caches of what the shard servers report, fresh by a
// watch and a poll, and tells handlers what changed.
package informer

import (
	"slices"
	"strings"

	"nstance.dev/operator/pkg/shard"
)

// Handler is told of changes and errors. Of changes it gets keys and not values:
// what counts is what the cache says when the key is worked on. Its functions run
// in the reader's goroutines and must be quick. A nil function is not called.
type Handler struct {
	// OnGroup is called when a group appeared, changed or went away. A list or an
	// event that says what is known already calls nothing.
	OnGroup func(shard, key string)
	// OnShard is called when HasSynced or Reachable of a shard changed.
	OnShard func(shard string)
	// OnError is called for each error that a shard reports. It comes once, as it
	// happens: what a shard reports while it is not connected is never heard of,
	// and some servers report nothing.
	OnError func(shard string, event shard.ErrorEvent)
}

func (h Handler) keyChanged(shard, key string) {
	if h.OnGroup != nil {
		h.OnGroup(shard, key)
	}
}

func (h Handler) shardChanged(shard string) {
	if h.OnShard != nil {
		h.OnShard(shard)
	}
}

// Groups is the cache of the groups of every shard that is being served, shaped
// like an informer: a watch with a periodic list beside it, HasSynced, handlers.
// Its methods are safe for concurrent use. What they return shares memory with
// the cache and is read only.
type Groups struct {
	shards[*cache, Handler]
	timing timing
}

// NewGroups makes an empty cache. Serve fills it.
func NewGroups() *Groups {
	return &Groups{
		shards: shards[*cache, Handler]{newCache: newCache, caches: map[string]*cache{}},
		timing: defaultTiming,
	}
}

// AddHandler adds a handler. Handlers are called in the order in which they were
// added. Add them before the first Serve: what is in the cache already is not
// told again.
func (g *Groups) AddHandler(handler Handler) {
	g.addHandler(handler)
}

// HasSynced reports whether the cache of a shard is complete: since its Serve
// began a list has succeeded and a watch was opened. It says nothing about now;
// for that see Reachable.
func (g *Groups) HasSynced(shard string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	c, ok := g.caches[shard]
	return ok && c.synced()
}

// Synced reports whether HasSynced is true of each of the shards.
func (g *Groups) Synced(shards []string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, id := range shards {
		if c, ok := g.caches[id]; !ok || !c.synced() {
			return false
		}
	}
	return true
}

// Reachable reports whether the watch of a shard is open and the last list since
// then succeeded, and if not why: the first failure since the shard was last
// reachable, replaced only by one of another kind (see shard.IsUnreachable), so
// that it is fit for the message of a condition. While the first connection is
// being made there is no reason: it is not known yet whether the shard is
// reachable.
func (g *Groups) Reachable(shard string) (bool, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	c, ok := g.caches[shard]
	if !ok {
		return false, nil
	}
	return c.reachable(), c.reason
}

// Get returns a group of a shard as last reported, whether or not the shard is
// reachable, and whether there is one.
func (g *Groups) Get(shardID, key string) (shard.Group, bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	c, ok := g.caches[shardID]
	if !ok {
		return shard.Group{}, false
	}
	group, ok := c.groups[key]
	return group, ok
}

// List returns the groups of a shard as last reported, by key, whether or not
// the shard is reachable.
func (g *Groups) List(shardID string) []shard.Group {
	g.mu.RLock()
	defer g.mu.RUnlock()
	c, ok := g.caches[shardID]
	if !ok {
		return nil
	}
	groups := make([]shard.Group, 0, len(c.groups))
	for _, group := range c.groups {
		groups = append(groups, group)
	}
	slices.SortFunc(groups, func(a, b shard.Group) int { return strings.Compare(a.Key, b.Key) })
	return groups
}

// Observe puts the reply to UpsertGroup into the cache, so that a sync right
// after the write sees it and a list that was under way does not undo it. Of a
// group that is cached, all that is said of instances stays as it is: the reply is
// about configuration, and an instance must never seem to be gone because a server
// left it out there. No handler is called: the caller knows. A shard that is not
// being served is ignored.
func (g *Groups) Observe(shardID string, group shard.Group) {
	g.update(shardID, func(c *cache) []string {
		if cached, ok := c.groups[group.Key]; ok {
			group.ActualSize, group.ProviderIDs = cached.ActualSize, cached.ProviderIDs
			group.ListsInstances, group.Instances = cached.ListsInstances, cached.Instances
		}
		c.put(group)
		return nil
	})
}

// report tells the handlers of an error.
func (g *Groups) report(shardID string, event shard.ErrorEvent) {
	g.mu.RLock()
	handlers := g.handlers
	g.mu.RUnlock()
	for _, handler := range handlers {
		if handler.OnError != nil {
			handler.OnError(shardID, event)
		}
	}
}
