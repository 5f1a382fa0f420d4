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

// retryDelays are before the first renewals after one that failed (server
// document). The last is before all others too.
var retryDelays = []time.Duration{0, 100 * time.Millisecond, time.Second}

// errLeaseEnded: the storage did not answer in time.
var errLeaseEnded = fmt.Errorf("%w: the lock was not renewed in time", ErrNotLeading)

// retryDelay is never more than an interval.
func (e *Elector) retryDelay(failures int) time.Duration {
	return min(retryDelays[min(failures, len(retryDelays))-1], e.options.Election.Interval)
}

// serve leads for one term. The error is what lead returned on its own, or wraps
// ErrNotLeading when leadership was lost.
func (e *Elector) serve(ctx context.Context, lead func(ctx context.Context) error) error {
	logger := klog.FromContext(ctx)
	logger.Info("Leading")
	term, end := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { end(e.renew(term)) })
	// A renewal that hangs must not keep the term from ending.
	wg.Go(func() { end(e.expire(term)) })

	err := lead(term)
	lost := context.Cause(term)
	end(nil)
	wg.Wait()
	if lost == nil && !e.Leading() {
		// What lead failed of was faster than the timer.
		lost = errLeaseEnded
	}
	e.giveUp()
	if lost == nil {
		return err
	}
	logger.Info("Leading no more", "reason", lost)
	// That its context ended is no news from lead.
	if err != nil && !errors.Is(err, term.Err()) && !errors.Is(err, ErrNotLeading) {
		logger.Error(err, "The end of a term was not a clean one")
	}
	return lost
}

// expire returns when the lease has ended, or ctx.
func (e *Elector) expire(ctx context.Context) error {
	for {
		end := e.leaseEnd()
		if !time.Now().Before(end) {
			return errLeaseEnded
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(end)):
		}
	}
}

// renew keeps the lease until leadership is lost, or ctx ends.
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
		err := e.renewOnce(ctx, start)
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

// renewOnce returns an error that wraps ErrNotLeading when it is in vain to try
// again.
func (e *Elector) renewOnce(ctx context.Context, start time.Time) error {
	lock := e.ownLock()
	data, err := encodeLock(lock)
	if err != nil {
		return err
	}
	e.unanswered = append(e.unanswered, data)
	call, cancel := e.callContext(context.WithoutCancel(ctx))
	defer cancel()
	etag, err := e.options.Store.Replace(call, e.options.Key, data, e.etag)
	switch {
	case errors.Is(err, storage.ErrConflict):
		return e.recognize(ctx, err)
	case err != nil:
		return err
	}
	e.etag, e.unanswered = etag, nil
	return e.extend(lock, start)
}

// recognize finds out whether the lock is another because an earlier renewal, which
// seemed to have failed, succeeded after all. Then the next one can succeed.
// Nothing is added to the lease: it is not known when that renewal came through.
func (e *Elector) recognize(ctx context.Context, conflict error) error {
	call, cancel := e.callContext(ctx)
	defer cancel()
	object, err := e.options.Store.Get(call, e.options.Key)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return err
	}
	for _, data := range e.unanswered {
		if bytes.Equal(data, object.Data) {
			e.etag = object.ETag
			return fmt.Errorf("an earlier renewal had succeeded: %w", conflict)
		}
	}
	e.giveUp()
	return fmt.Errorf("%w: %w", ErrNotLeading, conflict)
}

// extend begins the lease anew. When the old one ended before the answer came,
// the term has ended with it, and this server must win the lock again.
func (e *Elector) extend(lock Lock, start time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.leading() {
		return errLeaseEnded
	}
	e.renewed, e.seen = start, lock
	return nil
}

// giveUp makes this server lead no more, from this moment.
func (e *Elector) giveUp() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.renewed = time.Time{}
}

// release frees the lock after lead has returned. If that fails, the others wait
// until they take this server for dead.
func (e *Elector) release(ctx context.Context) {
	lock := Lock{ReleasedBy: e.options.ID, Reign: e.Reign(), LastUpdated: now()}
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
	e.setSeen(lock)
	klog.FromContext(ctx).Info("Released the lock")
}
