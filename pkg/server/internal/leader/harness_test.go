// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/internal/leader"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

const key = "leader/us-west-2a.json"

// The default election settings, with the longest interval that is allowed, and
// values derived from them.
const (
	interval = 5 * time.Second
	timeout  = 15 * time.Second
	lease    = 10 * time.Second
)

var election = config.Election{Enabled: true, Interval: interval, Timeout: timeout}

// server is a server that takes part in an election, and records its terms.
type server struct {
	*leader.Elector
	link *link
	// terms counts the terms, and term is the context of the last one. They are
	// written between waits of the bubble.
	terms int
	term  context.Context
	// lead is called in each term, if set. Otherwise a term lasts until its
	// context is done.
	lead func(ctx context.Context) error

	stop context.CancelFunc
	done chan struct{}
	// err is the result of Run, valid when done is closed.
	err error
}

// start starts a server and stops it at the end of the test.
func start(t *testing.T, store storage.Store, id string, lead func(ctx context.Context) error) *server {
	t.Helper()
	return startWith(t, store, id, election, lead)
}

func startWith(t *testing.T, store storage.Store, id string, election config.Election, lead func(ctx context.Context) error) *server {
	t.Helper()
	s := &server{link: newLink(store), lead: lead, done: make(chan struct{})}
	return s.start(t, leader.Options{Store: s.link, Key: key, ID: id, Boot: "boot", Address: id + ":8991", Election: election})
}

// startUsed is start with a storage that shows that a server has led.
func startUsed(t *testing.T, store storage.Store, id string) *server {
	t.Helper()
	s := &server{link: newLink(store), done: make(chan struct{})}
	used := func(context.Context) (bool, error) { return true, nil }
	return s.start(t, leader.Options{Store: s.link, Key: key, ID: id, Boot: "boot", Address: id + ":8991", Election: election, Used: used})
}

// startElsewhere is start on another machine, or after a restart of the machine.
func startElsewhere(t *testing.T, store storage.Store, id, boot string) *server {
	t.Helper()
	s := &server{link: newLink(store), done: make(chan struct{})}
	return s.start(t, leader.Options{Store: s.link, Key: key, ID: id, Boot: boot, Address: id + ":8991", Election: election})
}

func (s *server) start(t *testing.T, options leader.Options) *server {
	t.Helper()
	s.Elector = leader.New(options)
	ctx, stop := context.WithCancel(klog.NewContext(t.Context(), ktesting.NewLogger(t, ktesting.NewConfig())))
	s.stop = stop
	go func() {
		defer close(s.done)
		s.err = s.Run(ctx, s.serve)
	}()
	t.Cleanup(func() {
		s.link.set(working)
		stop()
		<-s.done
		s.link.pending.Wait()
	})
	synctest.Wait()
	return s
}

func (s *server) serve(ctx context.Context) error {
	s.terms++
	s.term = ctx
	if s.lead != nil {
		return s.lead(ctx)
	}
	<-ctx.Done()
	return ctx.Err()
}

// kill simulates a crash: no later call of the server reaches the storage.
func (s *server) kill() {
	s.link.set(cut)
	s.stop()
	<-s.done
}

// pass lets time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// await waits until ch is closed or the test is over.
func await(t *testing.T, ch <-chan struct{}) {
	select {
	case <-ch:
	case <-t.Context().Done():
	}
}

// expectTerms checks how many terms s has had, and whether it leads now.
func expectTerms(t *testing.T, s *server, terms int, leading bool) {
	t.Helper()
	if s.terms != terms || s.Leading() != leading {
		t.Fatalf("leads %v in its term %d, want %v in term %d", s.Leading(), s.terms, leading, terms)
	}
}

// readLock returns the lock in the storage.
func readLock(t *testing.T, store storage.Store) (leader.Lock, storage.Object) {
	t.Helper()
	object, err := store.Get(t.Context(), key)
	require.NoError(t, err)
	var lock leader.Lock
	require.NoError(t, json.Unmarshal(object.Data, &lock), "the lock is %q", object.Data)
	return lock, object
}

// overwrite replaces the content of the lock.
func overwrite(t *testing.T, store storage.Store, data string) {
	t.Helper()
	object, err := store.Get(t.Context(), key)
	if errors.Is(err, storage.ErrNotFound) {
		_, err = store.Create(t.Context(), key, []byte(data))
	} else if err == nil {
		_, err = store.Replace(t.Context(), key, []byte(data), object.ETag)
	}
	require.NoError(t, err)
}

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
	// paused: calls wait until the fault is over, even if their context is done earlier, like
	// the calls of a stopped process.
	paused
	// mute: calls are carried out but seem to fail.
	mute
	// late: calls fail with their context and are carried out after that.
	late
	// cut: the process is dead. Waiting calls are never carried out, but late calls, which
	// are in progress, are. No other fault follows.
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
