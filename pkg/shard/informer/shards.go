// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"slices"
	"sync"
)

// shards holds a cache for each shard that is being served, and the handlers that
// are told what changes in them. Every informer of this package is one.
type shards[C shardCache, H handler] struct {
	// newCache makes the cache of a shard that was not served before.
	newCache func() C

	mu       sync.RWMutex
	caches   map[string]C
	handlers []H
}

// shardCache is what is known of one shard. The lock of shards guards it.
type shardCache interface {
	// condition is the part whose changes handlers are told as such. It can be
	// compared.
	condition() any
	// restart forgets the state of the connection and nothing else.
	restart()
	// dropped are the keys to tell of when the shard is dropped.
	dropped() []string
}

// handler is told of changes.
type handler interface {
	keyChanged(shard, key string)
	shardChanged(shard string)
}

func (s *shards[C, H]) addHandler(handler H) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A new slice, because notify works on the old one without the lock.
	s.handlers = append(slices.Clone(s.handlers), handler)
}

// begin makes the shard's cache, or takes over the one of an earlier Serve.
func (s *shards[C, H]) begin(shardID string) {
	s.mu.Lock()
	if _, ok := s.caches[shardID]; !ok {
		s.caches[shardID] = s.newCache()
	}
	s.mu.Unlock()
	s.restart(shardID)
}

// end leaves the shard without a connection, or drops it.
func (s *shards[C, H]) end(shardID string, removed bool) {
	if !removed {
		s.restart(shardID)
		return
	}
	s.mu.Lock()
	keys := s.caches[shardID].dropped()
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

// update changes the cache of one shard under the lock, and tells the handlers
// afterwards. change returns the keys of what it changed.
func (s *shards[C, H]) update(shardID string, change func(C) []string) {
	s.mu.Lock()
	c, ok := s.caches[shardID]
	if !ok {
		s.mu.Unlock()
		return
	}
	before := c.condition()
	keys := change(c)
	changed := c.condition() != before
	handlers := s.handlers
	s.mu.Unlock()

	notify(handlers, shardID, keys, changed)
}

// notify calls the handlers. Keys come first: who hears that a shard has synced
// has heard of what it has.
func notify[H handler](handlers []H, shardID string, keys []string, condition bool) {
	for _, key := range keys {
		for _, handler := range handlers {
			handler.keyChanged(shardID, key)
		}
	}
	if !condition {
		return
	}
	for _, handler := range handlers {
		handler.shardChanged(shardID)
	}
}
