// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/storage"
)

// Lock is the object in the storage that names the leader. Other
// implementations of the server read and write the same fields
// (docs/server.md#leader-election).
type Lock struct {
	// LeaderID is the id of the server that leads. It is empty after a leader
	// has released the lock.
	LeaderID string `json:"leaderID"`
	// ReleasedBy is the id of the server that led until it released the lock.
	ReleasedBy string `json:"releasedBy,omitempty"`
	// LeadershipID changes whenever another server becomes the leader, even if
	// that server does nothing. It is empty in locks of other implementations.
	LeadershipID string `json:"reign,omitempty"`
	// Process is a random name of the process that wrote the lock. It
	// distinguishes two processes that use the same LeaderID by mistake.
	Process string `json:"process,omitempty"`
	// Boot identifies the start of the machine whose server wrote the lock. It is empty in locks of
	// other implementations.
	Boot string `json:"boot,omitempty"`
	// LeaderAddr is the host:port of the leader's health endpoint.
	LeaderAddr string `json:"leaderAddr"`
	// LastUpdated is when the leader last wrote the lock, by its own wall
	// clock. The clock may be wrong: the field is for people, and no decision
	// depends on it.
	LastUpdated time.Time `json:"lastUpdated"`
}

// now returns the wall clock time in the form that locks store. Because it
// differs with every write, the etag of the lock does too.
func now() time.Time {
	return time.Now().UTC().Round(0)
}

func encodeLock(lock Lock) ([]byte, error) {
	data, err := json.Marshal(lock)
	if err != nil {
		return nil, fmt.Errorf("encode the lock: %w", err)
	}
	return data, nil
}

// parseLock rejects locks that no server writes. A lock without the field leaderID was not
// released but edited by hand, and its leader may be alive.
func parseLock(data []byte) (Lock, error) {
	var read struct {
		LeaderID     *string   `json:"leaderID"`
		ReleasedBy   string    `json:"releasedBy"`
		LeadershipID string    `json:"reign"`
		Process      string    `json:"process"`
		Boot         string    `json:"boot"`
		LeaderAddr   string    `json:"leaderAddr"`
		LastUpdated  time.Time `json:"lastUpdated"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return Lock{}, fmt.Errorf("decode the lock: %w", err)
	}
	if read.LeaderID == nil {
		return Lock{}, errors.New("decode the lock: leaderID is missing")
	}
	return Lock{
		LeaderID: *read.LeaderID, ReleasedBy: read.ReleasedBy, LeadershipID: read.LeadershipID,
		Process: read.Process, Boot: read.Boot, LeaderAddr: read.LeaderAddr, LastUpdated: read.LastUpdated,
	}, nil
}

// conflictDelay is the wait before a server reads a lock again that another
// server acquired first.
const conflictDelay = 100 * time.Millisecond

// observedLock is the lock as a server that does not lead has observed it. The zero value
// stands for a lock that does not exist.
type observedLock struct {
	// etag is empty when there is no lock.
	etag string
	// taken is true when another server may lead.
	taken bool
	// at is when this version of the lock was first seen. It is taken after the
	// answer arrived, so the leader wrote the lock earlier.
	at time.Time
	// seen is true once this server has tried to read the lock.
	seen bool
}

// isUsed reports whether a server has led before. An error counts as yes.
func (e *Elector) isUsed(ctx context.Context) bool {
	if e.options.Used == nil || e.hasLed() {
		return false
	}
	call, cancel := e.callContext(ctx)
	defer cancel()
	used, err := e.options.Used(call)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to look whether a server has led")
	}
	return used || err != nil
}

// hasLed reports whether this process has led.
func (e *Elector) hasLed() bool { return e.LeadershipID() != "" }

// isFree reports whether the lock may be acquired. A leader stops after two thirds of the
// timeout, and the next leader waits for all of it, counted from when it saw the last change.
// The last third is the grace period between two leaders, so acquiring adds no other
// (docs/server.md#leader-election).
func (o *observedLock) isFree(timeout time.Duration) bool {
	return !o.taken || time.Since(o.at) >= timeout
}

// acquire waits until this server has acquired the lock. It returns false when
// ctx is done first.
func (e *Elector) acquire(ctx context.Context) bool {
	election := e.options.Election
	logger := klog.FromContext(ctx)
	var observed observedLock
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
		if err := e.observe(ctx, &observed); err != nil {
			logger.Error(err, "Failed to read the lock")
			continue
		}
		if !observed.isFree(election.Timeout) {
			wait = min(wait, time.Until(observed.at.Add(election.Timeout)))
			continue
		}
		err := e.tryAcquire(ctx, observed.etag)
		switch {
		case errors.Is(err, storage.ErrConflict):
			logger.V(2).Info("Another server acquired the lock first")
			wait = min(wait, conflictDelay)
		case err != nil:
			logger.Error(err, "Failed to acquire the lock")
		case e.Leading():
			return true
		default:
			// The storage answered so late that the lease has already expired.
			logger.Info("Acquired the lock too slowly to lead")
		}
	}
}

// readLock returns the object of the lock, or the zero value.
func (e *Elector) readLock(ctx context.Context) (storage.Object, error) {
	call, cancel := e.callContext(ctx)
	defer cancel()
	object, err := e.options.Store.Get(call, e.options.Key)
	if errors.Is(err, storage.ErrNotFound) {
		return storage.Object{}, nil
	}
	return object, err
}

// observe reads the lock and updates o.
func (e *Elector) observe(ctx context.Context, o *observedLock) error {
	object, err := e.readLock(ctx)
	if err != nil {
		return err
	}
	if object.ETag == "" {
		e.setObserved(Lock{})
	}
	if !o.seen && object.ETag == "" && e.isUsed(ctx) {
		// A leader that has not noticed the deletion of its lock leads for a lease.
		klog.FromContext(ctx).Info("There is no lock although a server has led, waiting for it to notice")
		o.taken, o.at = true, time.Now()
	}
	o.seen = true
	if object.ETag == o.etag {
		return nil
	}
	o.etag, o.at = object.ETag, time.Now()
	logger := klog.FromContext(ctx)
	if object.ETag == "" {
		// Servers do not delete the lock. The leader notices when it renews the
		// lock, and leads until then, so o.taken does not change.
		logger.Info("The lock was deleted")
		return nil
	}
	lock, err := parseLock(object.Data)
	if err != nil {
		// No server renews the lock while it is unreadable.
		logger.Error(err, "Failed to decode the lock, another server may lead")
		o.taken = true
		e.setObserved(Lock{})
		return nil
	}
	if before, known := e.Leader(); lock.LeaderID != "" && (!known || before.LeaderID != lock.LeaderID) {
		logger.Info("Found a leader", "leader", lock.LeaderID, "address", lock.LeaderAddr)
	}
	// A lock of a previous run of this server is free, but only for a process
	// that has not led yet. Otherwise a lock that this process did not write
	// shows that another process uses the same id.
	fromPreviousRun := e.Own(lock) && (e.etag == "" || e.etag == object.ETag)
	o.taken = lock.LeaderID != "" && !fromPreviousRun
	e.setObserved(lock)
	return nil
}

// tryAcquire replaces the lock that has the etag, or creates it. The error
// wraps storage.ErrConflict when another server was faster. The lease begins
// before the lock is written.
func (e *Elector) tryAcquire(ctx context.Context, etag string) error {
	lock := e.ownLock()
	lock.LeadershipID = e.nextLeadershipID()
	data, err := encodeLock(lock)
	if err != nil {
		return err
	}
	// The write must not be canceled: a lock that was written without an answer
	// could not be released.
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
	e.etag, e.unconfirmed = etag, nil
	e.mu.Lock()
	defer e.mu.Unlock()
	e.renewed, e.observed, e.leadershipID = start, lock, lock.LeadershipID
	return nil
}

// Own reports whether this server wrote a lock, also if in an earlier run since its machine was
// started. A lock with its id from another start is no such lock: the id may have been copied to
// another machine, with an image. A lock that does not name the start is from an earlier version,
// whose leadership goes on.
func (e *Elector) Own(lock Lock) bool {
	return cmp.Or(lock.LeaderID, lock.ReleasedBy) == e.options.ID && (lock.Boot == "" || lock.Boot == e.options.Boot)
}

// nextLeadershipID returns the current leadership id if this server was the last leader, and
// else a new id.
func (e *Elector) nextLeadershipID() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.Own(e.observed) && e.observed.LeadershipID != "" {
		return e.observed.LeadershipID
	}
	return rand.Text()
}

// callContext limits one call to the storage. The limit leaves a leader whose
// renewal hangs enough time to retry before its lease expires, even with the
// longest interval.
func (e *Elector) callContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.options.Election.Timeout/5)
}

// ownLock returns the lock that this server writes next.
func (e *Elector) ownLock() Lock {
	return Lock{
		LeaderID: e.options.ID, LeaderAddr: e.options.Address, LeadershipID: e.LeadershipID(),
		Process: e.process, Boot: e.options.Boot, LastUpdated: now(),
	}
}
