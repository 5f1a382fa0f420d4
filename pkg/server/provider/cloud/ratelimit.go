// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// minPause and maxPause bound the growing pause after throttled calls.
	minPause = time.Second
	maxPause = time.Minute
)

// budget limits the rate of calls, and pauses them all while the cloud throttles.
type budget struct {
	limiter *rate.Limiter

	mu    sync.Mutex
	pause time.Duration
	until time.Time
}

func newBudget(b Budget) *budget {
	return &budget{limiter: rate.NewLimiter(rate.Limit(b.PerSecond), max(1, b.Burst))}
}

// wait waits until a call may be made. It fails when ctx is done.
func (b *budget) wait(ctx context.Context) error {
	for {
		b.mu.Lock()
		delay := time.Until(b.until)
		b.mu.Unlock()
		if delay <= 0 {
			return b.limiter.Wait(ctx)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(delay):
		}
	}
}

// report adjusts the pause to the result of a call.
func (b *budget) report(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	switch {
	case !errors.Is(err, ErrThrottled):
		b.pause = 0
	case now.Before(b.until):
		// A call that was made before the pause began.
	default:
		b.pause = min(max(minPause, 2*b.pause), maxPause)
		b.until = now.Add(b.pause)
	}
}
