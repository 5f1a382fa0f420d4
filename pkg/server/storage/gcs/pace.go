// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcs

import (
	"context"
	"maps"
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/deadline"
)

// MinWriteInterval is the time between two writes of one object name, for which the service
// guarantees one write per second (https://cloud.google.com/storage/quotas#objects).
const MinWriteInterval = time.Second

// pace delays writes of an object, so that the service does not reject them.
type pace struct {
	interval time.Duration

	// mu guards next, which is when the next write of an object may be sent, for objects that
	// were written less than an interval ago.
	mu   sync.Mutex
	next map[string]time.Time
}

// wait waits until a write of an object may be sent.
func (p *pace) wait(ctx context.Context, key string) error {
	if delay := time.Until(p.reserve(key)); delay > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(delay):
		}
	}
	return deadline.Check(ctx)
}

// reserve returns when the next write of an object may be sent, and delays the writes after it.
func (p *pace) reserve(key string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(p.next, func(_ string, next time.Time) bool { return !next.After(now) })
	at, delayed := p.next[key]
	if !delayed {
		at = now
	}
	p.next[key] = at.Add(p.interval)
	return at
}

// done delays the next write of an object, because the service has written it just now.
func (p *pace) done(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if next := time.Now().Add(p.interval); next.After(p.next[key]) {
		p.next[key] = next
	}
}
