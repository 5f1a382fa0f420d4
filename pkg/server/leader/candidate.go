// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/storage"
)

// conflictDelay is before a server looks again at a lock that another one was
// faster to take.
const conflictDelay = 100 * time.Millisecond

// sighting is what a server that does not lead knows of the lock. The zero value
// is that there is none, which is how the first server finds it.
type sighting struct {
	// etag is empty when there is no lock.
	etag string
	// held is true when another server may lead.
	held bool
	// since is when the lock was first seen as it is, after the answer came: the
	// leader wrote it before.
	since time.Time
}

// free tells whether the lock may be taken over. A leader has stopped after two
// thirds of the timeout. That whoever takes over has waited for all of it, since it
// saw the last change with its own eyes, is the time of grace that the server
// document wants between two leaders: none is added after taking over.
func (s *sighting) free(timeout time.Duration) bool {
	return !s.held || time.Since(s.since) >= timeout
}

// stand waits until this server has taken the lock. It returns false when ctx
// ends before.
func (e *Elector) stand(ctx context.Context) bool {
	election := e.options.Election
	logger := klog.FromContext(ctx)
	var s sighting
	var wait time.Duration
	for {
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		if ctx.Err() != nil {
			return false
		}
		wait = election.Interval
		if err := e.look(ctx, &s); err != nil {
			logger.Error(err, "Failed to look at the lock")
			continue
		}
		if !s.free(election.Timeout) {
			wait = min(wait, time.Until(s.since.Add(election.Timeout)))
			continue
		}
		err := e.take(ctx, s.etag)
		switch {
		case errors.Is(err, storage.ErrConflict):
			logger.V(2).Info("Another server was faster to take the lock")
			wait = min(wait, conflictDelay)
		case err != nil:
			logger.Error(err, "Failed to take the lock")
		case e.Leading():
			return true
		default:
			// The storage took so long that the lease has ended before it began.
			logger.Info("The lock was taken too slowly to lead")
		}
	}
}

// look brings s up to date.
func (e *Elector) look(ctx context.Context, s *sighting) error {
	call, cancel := e.callContext(ctx)
	defer cancel()
	object, err := e.options.Store.Get(call, e.options.Key)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return err
	}
	if object.ETag == "" {
		e.setSeen(Lock{})
	}
	if object.ETag == s.etag {
		return nil
	}
	s.etag, s.since = object.ETag, time.Now()
	logger := klog.FromContext(ctx)
	if object.ETag == "" {
		// Servers do not delete the lock. The leader finds out when it renews it,
		// and leads until then: s.held stays what it was.
		logger.Info("The lock was deleted")
		return nil
	}
	lock, err := parseLock(object.Data)
	if err != nil {
		// As long as it stays like this, nobody renews it.
		logger.Error(err, "Cannot read the lock, another server may hold it")
		s.held = true
		e.setSeen(Lock{})
		return nil
	}
	if before, known := e.Leader(); lock.LeaderID != "" && (!known || before.LeaderID != lock.LeaderID) {
		logger.Info("Found a leader", "leader", lock.LeaderID, "address", lock.LeaderAddr)
	}
	// One of a former life is free, but only for a process that has not led yet: a
	// lock that it did not write says that another process uses its id.
	formerLife := lock.LeaderID == e.options.ID && (e.etag == "" || e.etag == object.ETag)
	s.held = lock.LeaderID != "" && !formerLife
	e.setSeen(lock)
	return nil
}

// take writes the lock in place of the one with the etag, or of none. The error
// wraps storage.ErrConflict when another server did so first. The lease begins
// before the lock is written.
func (e *Elector) take(ctx context.Context, etag string) error {
	lock := e.ownLock()
	lock.Reign = e.nextReign()
	data, err := encodeLock(lock)
	if err != nil {
		return err
	}
	// A lock that was taken without knowing could not be released.
	call, cancel := e.callContext(context.WithoutCancel(ctx))
	defer cancel()
	start := time.Now()
	if etag == "" {
		etag, err = e.options.Store.Create(call, e.options.Key, data)
	} else {
		etag, err = e.options.Store.Replace(call, e.options.Key, data, etag)
	}
	if err != nil {
		return err
	}
	e.etag, e.unanswered = etag, nil
	e.mu.Lock()
	defer e.mu.Unlock()
	e.renewed, e.seen, e.reign = start, lock, lock.Reign
	return nil
}

// nextReign returns that of the lock as it was seen when this server led last, and
// else one that never was.
func (e *Elector) nextReign() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cmp.Or(e.seen.LeaderID, e.seen.ReleasedBy) == e.options.ID && e.seen.Reign != "" {
		return e.seen.Reign
	}
	return rand.Text()
}

// callContext bounds one call to the storage. A leader whose renewal hangs tries
// again before its lease ends, even with the longest interval.
func (e *Elector) callContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.options.Election.Timeout/5)
}

// ownLock returns the lock that this server writes next.
func (e *Elector) ownLock() Lock {
	return Lock{LeaderID: e.options.ID, LeaderAddr: e.options.Address, Reign: e.Reign(), Process: e.process, LastUpdated: now()}
}
