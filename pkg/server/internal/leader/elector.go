// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package leader elects one leader among servers that share an object storage,
// and prevents a server that does not lead from writing.
//
// The lock is one object. Its leader rewrites it at every interval. A server that has seen it
// unchanged for a whole timeout acquires it, on condition that it is still unchanged. Each
// server measures time with its own monotonic clock, starting from its own reads and writes.
// A leader stops when two thirds of the timeout have passed since it began its last
// successful write, which is before any other server can have waited for the whole timeout.
// So clocks need to agree only on the approximate length of a second. They do not on a
// suspended machine, whose monotonic clock stops
// (https://pkg.go.dev/time#hdr-Monotonic_Clocks): do not suspend servers.
//
// Leaders renew at one interval, of which a timeout has at least three. They do
// not slow down in quiet times, because a slower leader would look dead to the
// others.
package leader

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/storage"
)

// Options describe a server and the election that it takes part in.
type Options struct {
	// Store stores the lock. Its calls must return when their context is done.
	Store storage.Store
	// Key is the key of the lock.
	Key string
	// ID identifies this server and is not empty. No other running server may use it.
	ID string
	// Boot identifies the start of this server's machine. A lock with ID and Boot was written by a
	// previous run of this server and is acquired at once. If Boot is empty, only locks without it are.
	Boot string
	// Used reports whether a server has led before, as far as the storage shows. A server
	// that starts and finds no lock then waits a timeout: the lock may have been deleted
	// while another server leads. It is optional.
	Used func(ctx context.Context) (bool, error)
	// Address is the host:port at which other servers reach this server.
	Address  string
	Election config.Election
}

// Elector takes part in an election for one server. All methods but Run are
// safe for concurrent use. Only one call of Run may be active.
type Elector struct {
	options Options
	// process identifies this process in the locks that it writes.
	process string

	mu sync.Mutex
	// renewed is when the last successful write of the lock was begun. It is
	// zero while this server does not own the lock.
	renewed time.Time
	// observed is the lock as this server last read or wrote it.
	observed Lock
	// leadershipID is the id in the lock that this server wrote last.
	leadershipID string

	// Only Run uses the fields below. etag is the etag of the lock that this server last
	// wrote.
	etag string
	// unconfirmed are the renewals since then that failed or whose response was lost.
	unconfirmed [][]byte
}

// New returns an Elector that does not take part before Run is called. Without
// election it leads at once.
func New(options Options) *Elector {
	e := &Elector{options: options, process: rand.Text()}
	if !options.Election.Enabled {
		e.observed = e.ownLock()
	}
	return e
}

// Run takes part in the election until ctx is done. Whenever this server leads,
// Run calls lead with a context that is canceled when leadership is lost, and
// does not try to acquire the lock again before lead has returned. When ctx is
// done, Run waits for lead, releases the lock so that the next leader need not
// wait, and returns nil. When lead returns although it still leads, Run
// releases the lock and returns the error of lead.
//
// After ctx is done the lock is not renewed, so that a server that cannot stop
// is replaced like a dead server: lead must finish its writes before the lease
// expires.
//
// Without election lead is called once.
func (e *Elector) Run(ctx context.Context, lead func(ctx context.Context) error) error {
	if e.options.ID == "" {
		return errors.New("take part in an election: this server has no id")
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("lock", e.options.Key, "id", e.options.ID))
	err := e.run(ctx, lead)
	select {
	case <-ctx.Done():
		// An error that is caused by the end of ctx is no failure.
		return nil
	default:
		return err
	}
}

func (e *Elector) run(ctx context.Context, lead func(ctx context.Context) error) error {
	if !e.options.Election.Enabled {
		return lead(ctx)
	}
	for e.acquire(ctx) {
		err := e.runTerm(ctx, lead)
		if ctx.Err() == nil && errors.Is(err, ErrNotLeading) {
			continue
		}
		e.release(ctx)
		return err
	}
	return ctx.Err()
}

// Leading reports whether this server leads at this moment.
func (e *Elector) Leading() bool {
	if !e.options.Election.Enabled {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leadingLocked()
}

// Leader returns the lock as this server last read or wrote it, and false when
// it names no leader. It does not query the storage.
func (e *Elector) Leader() (Lock, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.observed, e.observed.LeaderID != ""
}

// LeadershipID returns an id that stays the same while no other server leads,
// even when this server restarts, unless its machine does, and that changes as soon as another server
// has led. It is empty before this server has led, and without election.
func (e *Elector) LeadershipID() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leadershipID
}

// leadingLocked is Leading for callers that hold mu.
func (e *Elector) leadingLocked() bool {
	return !e.renewed.IsZero() && time.Now().Before(e.renewed.Add(e.leaseDuration()))
}

// leaseDuration is how long this server leads after it began a successful
// write.
func (e *Elector) leaseDuration() time.Duration {
	return e.options.Election.Timeout * 2 / 3
}

// leaseEnd returns when leadership expires unless the lock is renewed. It is in
// the past when this server does not lead.
func (e *Elector) leaseEnd() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.renewed.IsZero() {
		return time.Time{}
	}
	return e.renewed.Add(e.leaseDuration())
}

func (e *Elector) setObserved(lock Lock) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.observed = lock
}

// Handler serves the current leader at /leader/health and at
// /health/leadership, which other implementations of the server query
// (docs/server.md#leader-election). The body is the lock as this server last
// observed it, with empty fields when it names no leader. The status is 200
// when this server leads, else 503.
func (e *Elector) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /leader/health", e.serveHealth)
	mux.HandleFunc("GET /health/leadership", e.serveHealth)
	return mux
}

func (e *Elector) serveHealth(w http.ResponseWriter, _ *http.Request) {
	status := http.StatusServiceUnavailable
	if e.Leading() {
		status = http.StatusOK
	}
	lock, _ := e.Leader()
	data, err := encodeLock(lock)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// A write error only means that the client has disconnected.
	_, _ = w.Write(data)
}
