// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

// openStorage returns an empty storage.
func openStorage(t testing.TB) storage.Store {
	t.Helper()
	store, err := file.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// fault is the effect of a link on calls.
type fault int

const (
	// working: calls pass.
	working fault = iota
	// down: calls fail at once.
	down
	// hanging: calls wait until the fault is over or their context is done.
	hanging
	// paused: calls wait until the fault is over, even if their context is done
	// earlier, like those of a stopped process.
	paused
	// mute: calls are carried out but seem to fail.
	mute
	// late: calls fail with their context and are carried out after that.
	late
	// cut: the process is dead. Waiting calls are never carried out, but late
	// ones, which are in progress, are. No other fault follows this one.
	cut
)

var errLink = errors.New("the storage cannot be reached")

// link is the connection of one server to the storage.
type link struct {
	storage.Store
	// writes counts the writes that were carried out, and calls all calls that
	// were begun.
	writes, calls int

	mu    sync.Mutex
	fault fault
	// changed is closed when fault changes.
	changed chan struct{}
	// pending are the calls that are carried out late.
	pending sync.WaitGroup
}

func newLink(store storage.Store) *link {
	return &link{Store: store, changed: make(chan struct{})}
}

// set begins or clears a fault.
func (l *link) set(f fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault == cut {
		return
	}
	l.fault = f
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *link) state() (fault, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fault, l.changed
}

// call carries out do, unless the fault prevents it.
func (l *link) call(ctx context.Context, do func(ctx context.Context) error) error {
	l.mu.Lock()
	l.calls++
	l.mu.Unlock()
	for {
		fault, changed := l.state()
		switch fault {
		case down, cut:
			return errLink
		case mute:
			_ = do(ctx)
			return errLink
		case late:
			l.pending.Go(func() {
				<-ctx.Done()
				<-time.After(time.Second)
				_ = do(context.WithoutCancel(ctx))
			})
			<-ctx.Done()
			return ctx.Err()
		case hanging:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-changed:
			}
		case paused:
			<-changed
		default:
			return do(ctx)
		}
	}
}

func (l *link) Get(ctx context.Context, key string) (storage.Object, error) {
	var object storage.Object
	err := l.call(ctx, func(ctx context.Context) error {
		var err error
		object, err = l.Store.Get(ctx, key)
		return err
	})
	if err != nil {
		// A late read may still be in progress.
		return storage.Object{}, err
	}
	return object, nil
}

func (l *link) write(ctx context.Context, do func(ctx context.Context) (string, error)) (string, error) {
	var etag string
	err := l.call(ctx, func(ctx context.Context) error {
		var err error
		if etag, err = do(ctx); err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.writes++
		return nil
	})
	if err != nil {
		return "", err
	}
	return etag, nil
}

func (l *link) Create(ctx context.Context, key string, data []byte) (string, error) {
	return l.write(ctx, func(ctx context.Context) (string, error) { return l.Store.Create(ctx, key, data) })
}

func (l *link) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	return l.write(ctx, func(ctx context.Context) (string, error) { return l.Store.Replace(ctx, key, data, etag) })
}

func (l *link) Delete(ctx context.Context, key string) error {
	_, err := l.write(ctx, func(ctx context.Context) (string, error) { return "", l.Store.Delete(ctx, key) })
	return err
}

func (l *link) count() (calls, writes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls, l.writes
}

// slowWrites delays replacements until release is closed. They then succeed
// even if their context is done.
type slowWrites struct {
	storage.Store
	release <-chan struct{}
}

func (s slowWrites) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	<-s.release
	return s.Store.Replace(context.WithoutCancel(ctx), key, data, etag)
}
