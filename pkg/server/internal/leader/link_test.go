// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

// openStorage returns an empty storage.
func openStorage(t testing.TB) storage.Store {
	t.Helper()
	store, err := file.Open(t.TempDir())
	require.NoError(t, err)
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
	storagetest.Intercepted
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
	l := &link{changed: make(chan struct{})}
	l.Intercepted = storagetest.Intercepted{Store: store, Intercept: func(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
		return l.call(ctx, func(ctx context.Context) error {
			err := do(ctx)
			if err == nil && call.IsWrite() {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.writes++
			}
			return err
		})
	}}
	return l
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

func (l *link) count() (calls, writes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls, l.writes
}

// slowWrites delays replacements until release is closed. They then succeed even if
// their context is done.
func slowWrites(store storage.Store, release <-chan struct{}) storage.Store {
	return storagetest.Intercepted{Store: store, Intercept: func(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
		if call.Operation != "Replace" {
			return do(ctx)
		}
		<-release
		return do(context.WithoutCancel(ctx))
	}}
}
