// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"nstance.dev/operator/pkg/server/deadline"
)

const (
	// readTimeout bounds a call that only reads.
	readTimeout = time.Minute
	// minPause and maxPause bound the growing pause after throttled calls.
	minPause = time.Second
	maxPause = time.Minute
)

// errNotLeading means that a call was not made, because only the leader may make it.
var errNotLeading = errors.New("this server does not lead the shard")

// read makes a call that only reads.
func (p *Provider) read(ctx context.Context, call func(context.Context) error) error {
	if err := p.reads.wait(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := call(ctx)
	p.reads.report(err)
	return err
}

// write makes a call that changes something, if this server leads.
func (p *Provider) write(ctx context.Context, call func(context.Context) error) error {
	if err := p.writes.wait(ctx); err != nil {
		return err
	}
	return p.writeNow(ctx, call)
}

// writeNow is like write, for a caller that has waited until it may make a call.
func (p *Provider) writeNow(ctx context.Context, call func(context.Context) error) error {
	if p.options.CallContext != nil {
		callCtx, cancel := p.options.CallContext(ctx)
		defer cancel()
		if err := deadline.Check(callCtx); err != nil {
			return errors.Join(errNotLeading, err)
		}
		ctx = callCtx
	}
	err := call(ctx)
	p.writes.report(err)
	return err
}

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
