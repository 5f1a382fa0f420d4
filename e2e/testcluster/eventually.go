// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
)

// patience is by how much a busy machine may be slower: timeouts end tests that would never end, and
// no test is about them.
const patience = 3

// Eventually repeats check until it succeeds, and fails the test with check's
// last error when it does not within timeout times patience. It logs how long it took. It can be used in a
// cleanup.
func Eventually(t testing.TB, timeout time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	EventuallyEvery(t, 100*time.Millisecond, timeout, what, check)
}

// EventuallyEvery is Eventually for a check that is expensive, or that must be
// repeated more often.
func EventuallyEvery(t testing.TB, interval, timeout time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	begin := time.Now()
	require.NoError(t, Poll(context.WithoutCancel(t.Context()), interval, patience*timeout, what, check))
	t.Logf("%s: after %s", what, time.Since(begin).Round(time.Millisecond))
}

// EventuallyByProgress repeats check every two seconds until it succeeds, however long
// that takes. It fails the test with check's last error when the progress that check
// returns has not risen for stall times patience. It can be used in a cleanup.
func EventuallyByProgress(t testing.TB, stall time.Duration, what string, check func(context.Context) (progress int, err error)) {
	t.Helper()
	require.NoError(t, pollByProgress(context.WithoutCancel(t.Context()), patience*stall, what, check))
}

func pollByProgress(ctx context.Context, stall time.Duration, what string, check func(context.Context) (int, error)) error {
	const interval = 2 * time.Second
	best, risen := math.MinInt, time.Now()
	return wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		defer cancel()
		progress, err := check(attempt)
		switch {
		case err == nil:
			return true, nil
		case progress > best:
			best, risen = progress, time.Now()
		case time.Since(risen) >= stall:
			return false, fmt.Errorf("%s: no progress for %s: %w", what, stall, err)
		}
		return false, nil
	})
}

// attemptTimeout limits one attempt: a process that was killed or suspended may never respond.
const attemptTimeout = 20 * time.Second

// Poll is Eventually for goroutines other than the test's.
func Poll(ctx context.Context, interval, timeout time.Duration, what string, check func(context.Context) error) error {
	last := errors.New("never checked")
	err := wait.PollUntilContextTimeout(ctx, interval, timeout, true, func(ctx context.Context) (bool, error) {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		defer cancel()
		err := check(attempt)
		// A check that the timeout interrupts only reports the timeout, maybe before the
		// context has an error.
		if deadline, _ := ctx.Deadline(); err == nil || ctx.Err() == nil && time.Now().Before(deadline) {
			last = err
		}
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s: not within %s: %w", what, timeout, last)
	}
	return nil
}

// RunInformer calls a handler for the objects of an informer until ctx is done. It returns after
// the calls for the objects that exist.
func RunInformer(ctx context.Context, informer cache.SharedIndexInformer, handler cache.ResourceEventHandlerFuncs) error {
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return err
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return errors.New("the informer has not synced")
	}
	return nil
}
