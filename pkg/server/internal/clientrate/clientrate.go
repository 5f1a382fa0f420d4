// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package clientrate limits how often each of many clients does something.
package clientrate

import (
	"maps"
	"sync"

	"golang.org/x/time/rate"
)

// minLimiters is how many clients are known at least before those are forgotten that have done
// nothing for a while.
const minLimiters = 1024

// Limits has a limit for each client. The zero value is ready for use, and safe for concurrent use.
type Limits struct {
	mu       sync.Mutex
	byClient map[string]*rate.Limiter
	// forgetAt is the number of clients at which some are forgotten.
	forgetAt int
}

// Allow reports whether a client may do something now: burst times at once, and in the long run as
// often as limit says. Both may change from call to call.
func (l *Limits) Allow(client string, limit rate.Limit, burst int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter, found := l.byClient[client]
	switch {
	case !found:
		limiter = rate.NewLimiter(limit, burst)
		l.add(client, limiter)
	case limiter.Limit() != limit || limiter.Burst() != burst:
		limiter.SetLimit(limit)
		limiter.SetBurst(burst)
	}
	return limiter.Allow()
}

// add adds the limiter of a client. Limiters that allow as much as a new limiter are not needed.
func (l *Limits) add(client string, limiter *rate.Limiter) {
	if l.byClient == nil {
		l.byClient, l.forgetAt = map[string]*rate.Limiter{}, minLimiters
	}
	if len(l.byClient) >= l.forgetAt {
		maps.DeleteFunc(l.byClient, func(_ string, limiter *rate.Limiter) bool { return limiter.Tokens() >= float64(limiter.Burst()) })
		l.forgetAt = max(minLimiters, 2*len(l.byClient))
	}
	l.byClient[client] = limiter
}
