// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secrets

import (
	"bytes"
	"context"
	"sync"
	"time"
)

// WithCache returns store with a cache in memory of the secrets that were read. They are not
// read again for a time. Errors are not cached. With a ttl of zero it returns store itself.
func WithCache(store Store, ttl time.Duration) Store {
	if ttl <= 0 {
		return store
	}
	return &cache{Store: store, ttl: ttl, entries: map[string]cacheEntry{}}
}

type cache struct {
	Store
	ttl time.Duration

	// mu guards the fields below.
	mu      sync.Mutex
	entries map[string]cacheEntry
	// writes counts the calls that write: what was read during one is not kept.
	writes int
}

type cacheEntry struct {
	data []byte
	read time.Time
}

func (c *cache) Get(ctx context.Context, name string) ([]byte, error) {
	began := time.Now()
	c.mu.Lock()
	entry, found := c.entries[name]
	writes := c.writes
	c.mu.Unlock()
	if found && began.Sub(entry.read) < c.ttl {
		return bytes.Clone(entry.data), nil
	}
	data, err := c.Store.Get(ctx, name)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, name)
	if err == nil && c.writes == writes {
		c.entries[name] = cacheEntry{data: bytes.Clone(data), read: began}
	}
	return data, err
}

func (c *cache) Create(ctx context.Context, name string, data []byte) error {
	defer c.forget(name)
	return c.Store.Create(ctx, name, data)
}

func (c *cache) Set(ctx context.Context, name string, data []byte) error {
	defer c.forget(name)
	return c.Store.Set(ctx, name, data)
}

func (c *cache) Delete(ctx context.Context, name string) error {
	defer c.forget(name)
	return c.Store.Delete(ctx, name)
}

// forget removes a secret that this process may have changed.
func (c *cache) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	delete(c.entries, name)
}
