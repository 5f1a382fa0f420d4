// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/storage"
)

// retryDelays are the delays before retries of a failed renewal. The last one
// is repeated.
var retryDelays = []time.Duration{0, 100 * time.Millisecond, time.Second}

// errLeaseExpired means that the storage did not answer in time.
var errLeaseExpired = fmt.Errorf("%w: the lock was not renewed in time", ErrNotLeading)

// retryDelay returns the delay after a number of failures, at most one
// interval.
func (e *Elector) retryDelay(failures int) time.Duration {
	return min(retryDelays[min(failures, len(retryDelays))-1], e.options.Election.Interval)
}

// runTerm leads for one term. The error is the error that lead returned on its own, or wraps
// ErrNotLeading if leadership was lost.
func (e *Elector) runTerm(ctx context.Context, lead func(ctx context.Context) error) error {
	logger := klog.FromContext(ctx)
	logger.Info("Started leading")
	term, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { cancel(e.renew(term)) })
	// A separate goroutine cancels the term even while a renewal hangs.
	wg.Go(func() { cancel(e.waitForExpiry(term)) })

	err := lead(term)
	lost := context.Cause(term)
	cancel(nil)
	wg.Wait()
	if lost == nil && !e.Leading() {
		// lead failed because of the expired lease before the timer fired.
		lost = errLeaseExpired
	}
	e.stepDown()
	if lost == nil {
		return err
	}
	logger.Info("Stopped leading", "reason", lost)
	// Errors that only report the end of the term are expected.
	if err != nil && !errors.Is(err, term.Err()) && !errors.Is(err, ErrNotLeading) {
		logger.Error(err, "A term returned an error")
	}
	return lost
}

// waitForExpiry returns when the lease has expired or ctx is done.
func (e *Elector) waitForExpiry(ctx context.Context) error {
	for {
		end := e.leaseEnd()
		if !time.Now().Before(end) {
			return errLeaseExpired
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(end)):
		}
	}
}

// renew renews the lease until leadership is lost or ctx is done.
func (e *Elector) renew(ctx context.Context) error {
	failures := 0
	wait := e.options.Election.Interval
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		start := time.Now()
		err := e.tryRenew(ctx, start)
		switch {
		case errors.Is(err, ErrNotLeading):
			return err
		case err != nil:
			klog.FromContext(ctx).Error(err, "Failed to renew the lock")
			failures++
			wait = e.retryDelay(failures)
		default:
			failures = 0
			wait = time.Until(start.Add(e.options.Election.Interval))
		}
	}
}

// tryRenew returns an error that wraps ErrNotLeading when retries are
// pointless.
func (e *Elector) tryRenew(ctx context.Context, start time.Time) error {
	lock := e.ownLock()
	data, err := encodeLock(lock)
	if err != nil {
		return err
	}
	e.unconfirmed = append(e.unconfirmed, data)
	call, cancel := e.callContext(context.WithoutCancel(ctx))
	defer cancel()
	etag, err := e.options.Store.Replace(call, e.options.Key, data, e.etag)
	switch {
	case errors.Is(err, storage.ErrConflict):
		return e.resolveConflict(ctx, err)
	case err != nil:
		return err
	}
	e.etag, e.unconfirmed = etag, nil
	return e.extend(lock, start)
}

// resolveConflict checks whether the conflict comes from an earlier renewal
// that succeeded although it seemed to fail. Then the next renewal can succeed.
// The lease is not extended, because it is unknown when that renewal was
// carried out.
func (e *Elector) resolveConflict(ctx context.Context, conflict error) error {
	object, err := e.readLock(ctx)
	if err != nil {
		return err
	}
	for _, data := range e.unconfirmed {
		if bytes.Equal(data, object.Data) {
			e.etag = object.ETag
			return fmt.Errorf("an earlier renewal had succeeded: %w", conflict)
		}
	}
	e.stepDown()
	return fmt.Errorf("%w: %w", ErrNotLeading, conflict)
}

// extend starts a new lease. If the old lease expired before the answer
// arrived, the term is over, and this server must acquire the lock again.
func (e *Elector) extend(lock Lock, start time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.leadingLocked() {
		return errLeaseExpired
	}
	e.renewed, e.observed = start, lock
	return nil
}

// stepDown makes this server stop leading at once.
func (e *Elector) stepDown() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.renewed = time.Time{}
}

// release frees the lock after lead has returned. If that fails, other servers
// wait for the timeout.
func (e *Elector) release(ctx context.Context) {
	lock := Lock{ReleasedBy: e.options.ID, LeadershipID: e.LeadershipID(), Boot: e.options.Boot, LastUpdated: now()}
	data, err := encodeLock(lock)
	if err == nil {
		call, cancel := e.callContext(context.WithoutCancel(ctx))
		defer cancel()
		_, err = e.options.Store.Replace(call, e.options.Key, data, e.etag)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to release the lock")
		return
	}
	e.setObserved(lock)
	klog.FromContext(ctx).Info("Released the lock")
}
