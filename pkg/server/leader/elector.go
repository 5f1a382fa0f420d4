// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package leader chooses one leader among servers that share an object storage,
// and keeps a server that does not lead from writing.
//
// The lock is one object. Its leader writes it anew all the time; who has seen it
// unchanged for a whole timeout takes it over, on condition that it is still
// unchanged. All time is measured by the monotonic clock of each server, from
// what that server did or saw itself. A leader stops when two thirds of the
// timeout have passed since it began its last successful write, and so before
// any other server can have waited long enough: clocks need to agree, roughly, on
// the length of a second, and on nothing else. They do not on a machine that is
// suspended, where the monotonic clock stands still: servers must not be.
//
// The server document says that a leader renews every 30s in quiet times, which
// would look dead to those who wait 15s. Here it renews at one interval, of which
// a timeout has at least three.
package leader

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/storage"
)

// Options say who stands for which election.
type Options struct {
	// Store holds the lock. Its calls must end when their context ends.
	Store storage.Store
	// Key is that of the lock.
	Key string
	// ID is this server's own, not empty. Nobody else may use it at the same
	// time: a lock that carries it is one of a former life of this server, and
	// taken over at once.
	ID string
	// Address is where others find this server, host:port.
	Address  string
	Election config.Election
}

// Elector stands for election for one server. All methods but Run can be called
// at any time, by several goroutines. Run is called once at a time.
type Elector struct {
	options Options
	// process names this process in its locks.
	process string

	mu sync.Mutex
	// renewed is when the last successful write of the lock was begun. It is zero
	// while this server does not hold the lock.
	renewed time.Time
	// seen is the lock as this server last read or wrote it.
	seen Lock
	// reign is that of the lock that this server wrote last.
	reign string

	// What follows is used by Run only: what this server last wrote.
	etag string
	// unanswered are the renewals since then that failed, or seemed to.
	unanswered [][]byte
}

// New returns an Elector that does not stand before Run is called. Without
// election it leads from now on.
func New(options Options) *Elector {
	e := &Elector{options: options, process: rand.Text()}
	if !options.Election.Enabled {
		e.seen = e.ownLock()
	}
	return e
}

// Run stands for election until ctx ends. Whenever this server leads, Run calls
// lead, with a context that ends when leadership is lost, and does not stand again
// before lead has returned. When ctx ends, it waits for lead, releases the lock, so
// that the next leader need not wait, and returns nil. When lead returns while it
// could have gone on, Run releases the lock and returns what lead returned.
//
// After ctx has ended the lock is not renewed: a server that cannot stop is
// replaced like one that is dead, and what lead still wants to write has to be
// written before the lease ends.
//
// Without election lead is called once.
func (e *Elector) Run(ctx context.Context, lead func(ctx context.Context) error) error {
	if e.options.ID == "" {
		return errors.New("standing for election: this server has no id")
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("lock", e.options.Key, "id", e.options.ID))
	err := e.run(ctx, lead)
	select {
	case <-ctx.Done():
		// That what was under way ended with ctx is no failure.
		return nil
	default:
		return err
	}
}

func (e *Elector) run(ctx context.Context, lead func(ctx context.Context) error) error {
	if !e.options.Election.Enabled {
		return lead(ctx)
	}
	for e.stand(ctx) {
		err := e.serve(ctx, lead)
		if ctx.Err() == nil && errors.Is(err, ErrNotLeading) {
			continue
		}
		e.release(ctx)
		return err
	}
	return ctx.Err()
}

// Leading tells whether this server leads at this moment.
func (e *Elector) Leading() bool {
	if !e.options.Election.Enabled {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leading()
}

// Leader returns the lock as this server last read or wrote it, and false when
// that named nobody. It does not ask the storage.
func (e *Elector) Leader() (Lock, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen, e.seen.LeaderID != ""
}

// Reign returns what stays the same as long as nobody but this server leads, also
// when it is started again, and is another as soon as somebody else has led. It is
// empty before this server has led, and without election.
func (e *Elector) Reign() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reign
}

// leading is Leading for those who hold the mutex.
func (e *Elector) leading() bool {
	return !e.renewed.IsZero() && time.Now().Before(e.renewed.Add(e.lease()))
}

// lease is how long this server leads after it began a successful write.
func (e *Elector) lease() time.Duration {
	return e.options.Election.Timeout * 2 / 3
}

// leaseEnd returns until when this server leads if it does not renew the lock. It
// is long ago when this server does not lead.
func (e *Elector) leaseEnd() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.renewed.IsZero() {
		return time.Time{}
	}
	return e.renewed.Add(e.lease())
}

func (e *Elector) setSeen(lock Lock) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = lock
}
