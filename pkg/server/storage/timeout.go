// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storage

import (
	"context"
	"time"
)

// WithTimeout returns store with a timeout for each call. timeout is called at the
// begin of each call.
func WithTimeout(store Store, timeout func() time.Duration) Store {
	return &timed{store, timeout}
}

type timed struct {
	store   Store
	timeout func() time.Duration
}

func (t *timed) Get(ctx context.Context, key string) (Object, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	return t.store.Get(ctx, key)
}

func (t *timed) Create(ctx context.Context, key string, data []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	return t.store.Create(ctx, key, data)
}

func (t *timed) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	return t.store.Replace(ctx, key, data, etag)
}

func (t *timed) Delete(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	return t.store.Delete(ctx, key)
}

func (t *timed) List(ctx context.Context, prefix string) ([]Info, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	return t.store.List(ctx, prefix)
}
