// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secrets

import (
	"context"

	"nstance.dev/operator/pkg/server/deadline"
)

// ContextFunc returns the context of one call.
type ContextFunc = func(context.Context) (context.Context, context.CancelFunc)

// WithContexts returns store with other contexts for the calls that read and those that
// write: with a timeout, and such that only the leader writes.
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
