// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package informer caches what the shard servers report. Watches and periodic lists
// update the caches, and handlers receive the changes.
package informer

import (
	"cmp"
	"slices"
	"strings"

	"nstance.dev/operator/pkg/operator/shard"
)

// groupHandler adapts a shard.GroupHandler to shards.
type groupHandler struct{ shard.GroupHandler }

func (h groupHandler) keyChanged(shard, key string) {
	if h.OnGroup != nil {
		h.OnGroup(shard, key)
	}
}

func (h groupHandler) shardChanged(shard string) {
	if h.OnShard != nil {
		h.OnShard(shard)
	}
}

// Groups is the cache of the groups of every shard that is being served. Like a
// client-go informer it has a watch, a periodic list, HasSynced and handlers. Its
// methods are safe for concurrent use. Returned groups share memory with the cache
// and are read only.
type Groups struct {
	shards[*groupCache, groupHandler]
	options Options
	timing  timing
	// lists is the number of lists that were started. The lock of the caches guards it.
	lists uint64
}

// NewGroups returns an empty cache. Serve fills it.
func NewGroups(options Options) *Groups {
	return &Groups{
		shards:  shards[*groupCache, groupHandler]{newCache: newGroupCache, caches: map[string]*groupCache{}},
		options: options,
		timing:  defaultTiming.probing(cmp.Or(options.ProbeInterval, DefaultProbeInterval)),
	}
}

// AddHandler registers handler. Handlers are called in the order in which they were
// added. Add them before the first Serve: handlers are not called for groups that are
// already in the cache.
func (g *Groups) AddHandler(handler shard.GroupHandler) {
	g.addHandler(groupHandler{handler})
}

// HasSynced reports whether the cache of a shard is complete: since Serve was called a
// list has succeeded and a watch was opened. HasSynced stays true during an outage; see
// Reachable.
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
// then succeeded, and if not the reason. The reason is the first error since the shard
// was last reachable. Only an error of another kind (see shard.IsUnreachable,
// shard.IsWrongServer, shard.IsOtherCluster and shard.IsNotServing) replaces it, so that
// a condition can have it as its message.
// There is no reason while the first connection is being established.
func (g *Groups) Reachable(shard string) (bool, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	c, ok := g.caches[shard]
	if !ok {
		return false, nil
	}
	return c.reachable(), c.reason
}

// Relist has the groups of a shard listed soon, and returns a mark for ListedSince. It
// does not wait. A shard that is not being served is listed when it is.
func (g *Groups) Relist(shard string) (mark uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c, ok := g.caches[shard]; ok {
		select {
		case c.relist <- struct{}{}:
		default:
		}
	}
	return g.lists
}

// ListedSince reports whether a list of the groups of a shard has succeeded that began
// after the call of Relist that returned mark.
func (g *Groups) ListedSince(shard string, mark uint64) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	c, ok := g.caches[shard]
	return ok && c.lastListed > mark
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

// Observe puts the reply to UpsertGroup into the cache, so that the next sync sees it
// and a list in progress does not revert it. The instances of a cached group stay as
// they are: the reply is about configuration, and instances that a server leaves out of
// it must not seem to be deleted. No handler is called, because the caller has the
// reply. Observe ignores a shard that is not being served.
func (g *Groups) Observe(shardID string, group shard.Group) {
	g.update(shardID, func(c *groupCache) []string {
		if cached, ok := c.groups[group.Key]; ok {
			group.ActualSize, group.ProviderIDs = cached.ActualSize, cached.ProviderIDs
			group.ListsInstances, group.Instances = cached.ListsInstances, cached.Instances
		}
		c.put(group)
		return nil
	})
}

// report calls the handlers with an error.
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
