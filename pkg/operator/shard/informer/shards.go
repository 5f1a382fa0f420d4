// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"slices"
	"sync"
	"time"

	"nstance.dev/operator/pkg/operator/shard"
)

// shards has the cache of each shard that is being served, and the handlers that receive the
// changes. Groups and Notices embed it.
type shards[C shardCache, H handler] struct {
	// newCache returns the cache of a shard that was not served before.
	newCache func(shardID string) C

	mu       sync.RWMutex
	caches   map[string]C
	handlers []H
}

// shardCache is the cache of one shard. The lock of shards guards it.
type shardCache interface {
	// status returns a comparable value. If it has changed, shardChanged is called.
	status() any
	// restart resets the state of the connection only.
	restart()
	// shardRemoved is called when the shard is dropped, and returns the keys to call keyChanged for.
	shardRemoved() []string
}

// handler adapts shard.GroupHandler and shard.NoticeHandler.
type handler interface {
	keyChanged(shard, key string)
	shardChanged(shard string)
}

func (s *shards[C, H]) addHandler(handler H) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// notify reads the old slice without the lock.
	s.handlers = append(slices.Clone(s.handlers), handler)
}

// start creates the cache of a shard, or restarts its cache of an earlier Serve.
func (s *shards[C, H]) start(shardID string) {
	s.mu.Lock()
	if _, ok := s.caches[shardID]; !ok {
		s.caches[shardID] = s.newCache(shardID)
	}
	s.mu.Unlock()
	s.restart(shardID)
}

// stop resets the state of the shard's connection, or drops a removed shard.
func (s *shards[C, H]) stop(shardID string, removed bool) {
	if !removed {
		s.restart(shardID)
		return
	}
	s.mu.Lock()
	keys := s.caches[shardID].shardRemoved()
	delete(s.caches, shardID)
	handlers := s.handlers
	s.mu.Unlock()
	notify(handlers, shardID, keys, true)
}

func (s *shards[C, H]) restart(shardID string) {
	s.update(shardID, func(c C) []string {
		c.restart()
		return nil
	})
}

// update changes the cache of a shard with the lock held, and then calls the handlers without
// it. change returns the changed keys.
func (s *shards[C, H]) update(shardID string, change func(C) []string) {
	s.mu.Lock()
	c, ok := s.caches[shardID]
	if !ok {
		s.mu.Unlock()
		return
	}
	before := c.status()
	keys := change(c)
	changed := c.status() != before
	handlers := s.handlers
	s.mu.Unlock()

	notify(handlers, shardID, keys, changed)
}

// notify calls the handlers first for the keys and then for the shard. So a handler has
// received all keys of a shard when it learns that the shard has synced.
func notify[H handler](handlers []H, shardID string, keys []string, shardChanged bool) {
	for _, key := range keys {
		for _, handler := range handlers {
			handler.keyChanged(shardID, key)
		}
	}
	if !shardChanged {
		return
	}
	for _, handler := range handlers {
		handler.shardChanged(shardID)
	}
}

// link is the state of the watch of groups. It is kept when a shard is served again.
type link struct {
	lastList, lastMessage time.Time
	openings              int
}

func (l *link) opened(now time.Time) {
	l.openings++
	l.lastMessage = now
}

// Link returns the state of the watch of a shard's groups, the zero value if the shard is not
// being served.
func (g *Groups) Link(shardID string) shard.Link {
	g.mu.RLock()
	defer g.mu.RUnlock()
	c, ok := g.caches[shardID]
	if !ok {
		return shard.Link{}
	}
	return shard.Link{
		LastList: c.link.lastList, LastMessage: c.link.lastMessage, Reconnects: max(c.link.openings-1, 0),
	}
}

// LastMessage returns when the watch of a shard was opened or delivered its last event, the
// zero time before the first opening.
func (n *Notices) LastMessage(shardID string) time.Time {
	n.mu.RLock()
	defer n.mu.RUnlock()
	c, ok := n.caches[shardID]
	if !ok {
		return time.Time{}
	}
	return c.lastEventAt
}
