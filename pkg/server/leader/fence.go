// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader

import (
	"context"
	"errors"
	"fmt"

	"nstance.dev/operator/pkg/server/storage"
)

// ErrNotLeading refuses what only the leader may do. What was under way when
// leadership ended may have been done or not.
var ErrNotLeading = errors.New("this server does not lead")

// Context returns a context for one call to the outside that only the leader may
// make. Its deadline is the end of the lease at this moment, so at least a third
// of the election's timeout away unless renewals fail; a call that needs longer
// must be one that can be made again. When this server does not lead, the context
// has ended already. The cause of both is ErrNotLeading.
func (e *Elector) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	if !e.options.Election.Enabled {
		return context.WithCancel(ctx)
	}
	return context.WithDeadlineCause(ctx, e.leaseEnd(), ErrNotLeading)
}

// Fence returns store for those who act as the leader. Writes fail with an error
// that wraps ErrNotLeading when this server does not lead, and have the deadline
// of Context when it does. Reads pass. A write that was handed over in time may
// still take place later, as a remote storage sees fit: what another leader may
// have changed is replaced by its etag.
func (e *Elector) Fence(store storage.Store) storage.Store {
	return fence{Store: store, elector: e}
}

type fence struct {
	storage.Store
	elector *Elector
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

// write calls do while this server leads. That the process was stopped between the
// question here and the write is for the storage to notice: it looks at the
// deadline last.
func (f fence) write(ctx context.Context, key string, do func(context.Context) error) error {
	lease, cancel := f.elector.Context(ctx)
	defer cancel()
	if !f.elector.Leading() {
		return fmt.Errorf("writing %s: %w", key, ErrNotLeading)
	}
	err := do(lease)
	// An error of the caller's own context is not ours to explain.
	if err != nil && storage.Ended(lease) != nil && storage.Ended(ctx) == nil {
		return fmt.Errorf("writing %s: %w: %w", key, ErrNotLeading, err)
	}
	return err
}
