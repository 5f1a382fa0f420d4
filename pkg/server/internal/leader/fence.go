// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader

import (
	"context"
	"errors"
	"fmt"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/storage"
)

// ErrNotLeading is returned for operations that only the leader may perform. An
// operation that was in progress when leadership was lost may have succeeded or
// not.
var ErrNotLeading = errors.New("this server does not lead")

// Context returns a context for one external call that only the leader may
// make. Its deadline is the current end of the lease: at least a third of the
// election timeout away, unless renewals fail. A call that needs longer must be
// repeatable. When this server does not lead, the context is already done. The
// cause of both is ErrNotLeading.
func (e *Elector) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	if !e.options.Election.Enabled {
		return context.WithCancel(ctx)
	}
	return context.WithDeadlineCause(ctx, e.leaseEnd(), ErrNotLeading)
}

// Follow returns a context for calls that only the leader may make, that may last longer than
// a lease, and that are safe to repeat. It lasts as long as the leadership is renewed: each
// renewal moves its end. If this server does not lead, the context is already done. The cause
// of both is ErrNotLeading.
func (e *Elector) Follow(ctx context.Context) (context.Context, context.CancelFunc) {
	if !e.options.Election.Enabled {
		return context.WithCancel(ctx)
	}
	ctx, cancel := context.WithCancelCause(deadline.WithLease(ctx, e.leaseEnd))
	if !e.Leading() {
		cancel(ErrNotLeading)
	}
	go func() {
		// waitForExpiry returns at once when ctx is done.
		if err := e.waitForExpiry(ctx); ctx.Err() == nil {
			cancel(err)
		}
	}()
	return ctx, func() { cancel(nil) }
}

// Fence returns store for code that acts as the leader. Writes fail with an
// error that wraps ErrNotLeading when this server does not lead, and have the
// deadline of Context when it does. Reads are not restricted. A remote storage
// may still carry out a write later that it received in time: objects that
// another leader may have changed are therefore replaced by their etag.
func (e *Elector) Fence(store storage.Store) storage.Store {
	return fence{Store: store, elector: e}
}

type fence struct {
	storage.Store
	elector *Elector
}

// GetChanged implements storage.ChangeReader.
func (f fence) GetChanged(ctx context.Context, key, etag string) (storage.Object, error) {
	return storage.GetChanged(ctx, f.Store, key, etag)
}

func (f fence) Create(ctx context.Context, key string, data []byte) (etag string, err error) {
	err = f.write(ctx, key, func(ctx context.Context) error {
		etag, err = f.Store.Create(ctx, key, data)
		return err
	})
	return etag, err
}

func (f fence) Replace(ctx context.Context, key string, data []byte, etag string) (newETag string, err error) {
	err = f.write(ctx, key, func(ctx context.Context) error {
		newETag, err = f.Store.Replace(ctx, key, data, etag)
		return err
	})
	return newETag, err
}

func (f fence) Delete(ctx context.Context, key string) error {
	return f.write(ctx, key, func(ctx context.Context) error {
		return f.Store.Delete(ctx, key)
	})
}

// write calls do while this server leads. The process may be paused between the
// check here and the write. The storage detects that, because it checks the
// deadline last.
func (f fence) write(ctx context.Context, key string, do func(context.Context) error) error {
	lease, cancel := f.elector.Context(ctx)
	defer cancel()
	if !f.elector.Leading() {
		return fmt.Errorf("write %s: %w", key, ErrNotLeading)
	}
	err := do(lease)
	// Errors of the caller's own context are returned unchanged.
	if err != nil && deadline.Check(lease) != nil && deadline.Check(ctx) == nil {
		return fmt.Errorf("write %s: %w: %w", key, ErrNotLeading, err)
	}
	return err
}
