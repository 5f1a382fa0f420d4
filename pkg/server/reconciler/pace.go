// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"sync"
	"time"
)

// pace keeps a least time between two instances that the provider has taken the
// order for, whatever their groups. Nobody is kept waiting: who may not order is
// told when to come back.
type pace struct {
	mu sync.Mutex
	// ordering is true while an order is under way.
	ordering bool
	last     time.Time
}

// begin returns zero when an instance may be ordered now. Then done must be
// called with when that was finished, and whether the provider took the order.
// Without a gap orders need not wait for each other.
func (p *pace) begin(gap time.Duration, now time.Time) (done func(at time.Time, taken bool), wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if gap <= 0 {
		return func(time.Time, bool) {}, 0
	}
	if p.ordering {
		return nil, gap
	}
	if next := p.last.Add(gap); now.Before(next) {
		return nil, next.Sub(now)
	}
	p.ordering = true
	return p.done, 0
}

func (p *pace) done(at time.Time, taken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ordering = false
	if taken {
		p.last = at
	}
}
