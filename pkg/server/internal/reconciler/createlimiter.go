// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"sync"
	"time"
)

// createLimiter enforces a minimum gap between two successful creations, across
// all groups. Callers never block: they learn when to try again. It is not a
// token bucket, because a failed creation must not use up the slot, and the gap
// counts from the end of a creation.
type createLimiter struct {
	mu sync.Mutex
	// inProgress is true during a creation.
	inProgress bool
	last       time.Time
}

// begin returns zero when an instance may be created now. The caller must then
// call done with the time at which the creation finished and whether it
// succeeded. Without a gap, creations may run concurrently. Otherwise wait is
// when to try again.
func (l *createLimiter) begin(gap time.Duration, now time.Time) (done func(at time.Time, succeeded bool), wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if gap <= 0 {
		return func(time.Time, bool) {}, 0
	}
	if l.inProgress {
		return nil, gap
	}
	if next := l.last.Add(gap); now.Before(next) {
		return nil, next.Sub(now)
	}
	l.inProgress = true
	return l.done, 0
}

func (l *createLimiter) done(at time.Time, succeeded bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inProgress = false
	if succeeded {
		l.last = at
	}
}
