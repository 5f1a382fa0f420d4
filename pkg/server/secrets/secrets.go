// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package secrets stores the secrets of a cluster: its keys, and the secrets for files of
// instances (docs/server-reference.md#keys).
package secrets

import (
	"bytes"
	"context"
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/deadline"
)

// Store stores secrets by name. It is safe for concurrent use by several goroutines and
// several processes. Its errors have the name of the secret and no part of its value.
type Store interface {
	// Get returns a secret. The error wraps storage.ErrNotFound only if the store has
	// responded that it does not exist: a caller creates new keys then.
	Get(ctx context.Context, name string) ([]byte, error)
	// Create stores a secret of the servers, for which storage.IsReservedSecret is true. It
	// must not exist: of several concurrent calls one succeeds, and Get returns its value
	// from the first time on. The error wraps storage.ErrConflict if the secret exists. After
	// another error it may or may not exist.
	Create(ctx context.Context, name string, data []byte) error
	// Set stores another secret, and replaces an existing one.
	Set(ctx context.Context, name string, data []byte) error
	// Delete deletes a secret. The error wraps storage.ErrNotFound if it does not exist.
	Delete(ctx context.Context, name string) error
	// List returns the names of all secrets, sorted.
	List(ctx context.Context) ([]string, error)
}

// ContextFunc returns the context of one call.
type ContextFunc = func(context.Context) (context.Context, context.CancelFunc)

// WithContexts returns store with contexts for the calls that read and for the calls that
// write, such as a timeout, and a context that only the leader has.
func WithContexts(store Store, read, write ContextFunc) Store {
	return &contexts{store: store, read: read, write: write}
}

type contexts struct {
	store       Store
	read, write ContextFunc
}

func (c *contexts) Get(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := c.read(ctx)
	defer cancel()
	return c.store.Get(ctx, name)
}

func (c *contexts) Create(ctx context.Context, name string, data []byte) error {
	return c.writing(ctx, func(ctx context.Context) error { return c.store.Create(ctx, name, data) })
}

func (c *contexts) Set(ctx context.Context, name string, data []byte) error {
	return c.writing(ctx, func(ctx context.Context) error { return c.store.Set(ctx, name, data) })
}

func (c *contexts) Delete(ctx context.Context, name string) error {
	return c.writing(ctx, func(ctx context.Context) error { return c.store.Delete(ctx, name) })
}

func (c *contexts) List(ctx context.Context) ([]string, error) {
	ctx, cancel := c.read(ctx)
	defer cancel()
	return c.store.List(ctx)
}

func (c *contexts) writing(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := c.write(ctx)
	defer cancel()
	if err := deadline.Check(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	return do(ctx)
}

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
	// writes counts the calls that write: values that are read during such a call are not
	// kept.
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
