// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"slices"
	"sync"
)

// shards contains a cache for each shard that is being served, and the handlers that
// receive the changes. Every informer of this package embeds it.
type shards[C shardCache, H handler] struct {
	// newCache returns the cache of a shard that was not served before.
	newCache func() C

	mu       sync.RWMutex
	caches   map[string]C
	handlers []H
}

// shardCache is the cache of one shard. The lock of shards guards it.
type shardCache interface {
	// status returns the part whose changes shardChanged is called for. It is
	// comparable.
	status() any
	// restart resets the state of the connection and nothing else.
	restart()
	// droppedKeys returns the keys to call keyChanged for when the shard is dropped.
	droppedKeys() []string
}

// handler receives changes.
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

// start creates the shard's cache, or restarts the one of an earlier Serve.
func (s *shards[C, H]) start(shardID string) {
	s.mu.Lock()
	if _, ok := s.caches[shardID]; !ok {
		s.caches[shardID] = s.newCache()
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
	keys := s.caches[shardID].droppedKeys()
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

// update changes the cache of one shard with the lock, and calls the handlers without
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

// notify calls the handlers, first for the keys and then for the shard: when a handler
// receives that a shard has synced, it has received the shard's keys.
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
