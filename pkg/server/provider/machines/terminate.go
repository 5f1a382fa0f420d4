// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

const (
	// gatherDelay is how long Terminate waits for further machines.
	gatherDelay = 100 * time.Millisecond
	// confirmTimeout is how long the cloud may report that a machine runs after Terminate
	// has succeeded, or has not found it. Then the call is repeated.
	confirmTimeout = time.Minute
)

// terminateDue terminates machines, many with one call, until ctx is done.
func (p *Provider) terminateDue(ctx context.Context) {
	for {
		batch, wait := p.dueTerminations(time.Now())
		if len(batch) > 0 {
			p.terminateBatch(ctx, batch)
			if ctx.Err() != nil {
				return
			}
			continue
		}
		var timer <-chan time.Time
		if wait > 0 {
			timer = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-timer:
		case <-p.terminate:
			select {
			case <-ctx.Done():
				return
			case <-time.After(gatherDelay):
			}
		}
	}
}

// dueTerminations returns the machines to terminate now, as many as one call may have, or
// else when the next one is due, zero for never.
func (p *Provider) dueTerminations(now time.Time) (batch []Machine, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.table {
		if !e.delete || e.machine == nil || e.machine.State == instance.Terminating {
			continue
		}
		if delay := e.due.Sub(now); delay <= 0 {
			batch = append(batch, *e.machine)
		} else if wait == 0 || delay < wait {
			wait = delay
		}
	}
	slices.SortFunc(batch, func(a, b Machine) int { return strings.Compare(a.ID, b.ID) })
	return batch[:min(len(batch), max(1, p.limits.Batch))], wait
}

// terminateBatch terminates machines with one call.
func (p *Provider) terminateBatch(ctx context.Context, batch []Machine) {
	var errs map[string]error
	err := p.write(ctx, func(ctx context.Context) error {
		errs = p.api.Terminate(ctx, batch)
		return errors.Join(slices.Collect(maps.Values(errs))...)
	})
	if ctx.Err() != nil {
		return
	}
	for _, m := range batch {
		failure := errs[m.ID]
		if errs == nil {
			failure = err // the call was not made
		}
		p.terminatedOne(ctx, m, failure)
	}
	p.poll.send()
}

// terminatedOne stores the result of a call for one machine.
func (p *Provider) terminatedOne(ctx context.Context, m Machine, err error) {
	now := time.Now()
	p.mu.Lock()
	e, known := p.table[m.ID]
	switch {
	case !known:
	case err == nil:
		e.terminated, e.due, e.backoff = now, now.Add(confirmTimeout), 0
	case errors.Is(err, ErrNotFound):
		// The machine may be invisible to this call. Lists and Find decide whether it exists.
		e.due, e.backoff = now.Add(confirmTimeout), 0
	default:
		e.backoff = min(max(minRetryDelay, 2*e.backoff), maxRetryDelay)
		e.due = now.Add(e.backoff)
	}
	p.mu.Unlock()
	if err != nil && !errors.Is(err, ErrNotFound) {
		p.reportFailure(ctx, m.Group, m.ID, err)
	}
}
