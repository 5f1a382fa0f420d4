// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

const (
	// gatherDelay is how long a call waits for further VMs.
	gatherDelay = 100 * time.Millisecond
	// confirmTimeout is how long the cloud may report that a VM runs after Terminate has
	// succeeded, or has not found it. Then the call is repeated.
	confirmTimeout = time.Minute
	// maxAlone is how many VMs that were refused alone before get a call of their own
	// after each call for many of them.
	maxAlone = 4
)

// terminateDue terminates VMs, many with one call, until ctx is done.
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

// dueTerminations returns the VMs to terminate now, as many as one call may have. If there
// are no such VMs, it returns the time until the next is due, or zero for never. VMs that
// were refused alone are not mixed with others, and the least recently refused VMs come
// first.
func (p *Provider) dueTerminations(now time.Time) (batch []VM, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var due []*entry
	for _, e := range p.table {
		if !e.delete || e.vm == nil || e.vm.State == instance.Terminating || e.vm.Unidentified != "" {
			continue
		}
		if delay := e.due.Sub(now); delay <= 0 {
			due = append(due, e)
		} else if wait == 0 || delay < wait {
			wait = delay
		}
	}
	slices.SortFunc(due, func(a, b *entry) int { return cmp.Or(a.refused.Compare(b.refused), strings.Compare(a.id, b.id)) })
	for _, e := range due[:min(len(due), max(1, p.limits.Batch))] {
		if e.refused.IsZero() != due[0].refused.IsZero() {
			break
		}
		batch = append(batch, *e.vm)
	}
	return batch, wait
}

// terminateBatch terminates VMs in one call. If the cloud refuses the call, it retries in
// smaller batches, because a single VM may be the reason.
func (p *Provider) terminateBatch(ctx context.Context, batch []VM) {
	refused := p.terminateSome(ctx, batch)
	if len(refused) > 0 && len(refused) < len(batch) {
		refused = p.terminateSome(ctx, refused) // without the VMs that the error has named
	}
	if p.wereRefused(refused) {
		// All were refused alone before, so maybe all still are: make few further calls.
		alone := refused[:min(len(refused), maxAlone)]
		for n := range alone {
			p.terminateSome(ctx, alone[n:n+1])
		}
		p.postpone(refused[len(alone):])
	} else {
		p.terminateHalves(ctx, refused)
	}
	p.poll.send()
}

// terminateHalves terminates the VMs of a refused call in two halves.
func (p *Provider) terminateHalves(ctx context.Context, refused []VM) {
	if len(refused) == 0 {
		return
	}
	middle := (len(refused) + 1) / 2
	for _, half := range [][]VM{refused[:middle], refused[middle:]} {
		if len(half) > 0 && ctx.Err() == nil {
			p.terminateHalves(ctx, p.terminateSome(ctx, half))
		}
	}
}

// terminateSome terminates VMs in one call. If there are several, it returns the VMs whose
// termination may have been refused because of others.
func (p *Provider) terminateSome(ctx context.Context, batch []VM) (refused []VM) {
	var errs map[string]error
	err := p.write(ctx, func(ctx context.Context) error {
		errs = p.api.Terminate(ctx, batch)
		return errors.Join(slices.Collect(maps.Values(errs))...)
	})
	if ctx.Err() != nil {
		return nil
	}
	for _, vm := range batch {
		failure := errs[vm.ID]
		if errs == nil {
			failure = err // the call was not made
		}
		if len(batch) > 1 && errors.Is(failure, ErrRefusedTogether) {
			refused = append(refused, vm)
			continue
		}
		p.terminatedOne(ctx, vm, failure)
	}
	return refused
}

// wereRefused reports whether VMs of one batch were refused alone before.
func (p *Provider) wereRefused(batch []VM) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(batch, func(vm VM) bool {
		e, known := p.table[vm.ID]
		return known && !e.refused.IsZero()
	})
}

// postpone delays the next calls for VMs without calling the cloud. Their last failure was
// reported.
func (p *Provider) postpone(list []VM) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, vm := range list {
		if e, known := p.table[vm.ID]; known {
			e.delay(time.Now())
		}
	}
}

// terminatedOne stores the result of a call for one VM.
func (p *Provider) terminatedOne(ctx context.Context, vm VM, err error) {
	now := time.Now()
	p.mu.Lock()
	e, known := p.table[vm.ID]
	switch {
	case !known:
	case err == nil:
		e.terminated, e.due, e.backoff, e.refused = now, now.Add(confirmTimeout), 0, time.Time{}
	case errors.Is(err, ErrNotFound):
		// The VM may be invisible to this call. Lists and Find decide whether it exists.
		e.due, e.backoff = now.Add(confirmTimeout), 0
	default:
		if errors.Is(err, ErrRefused) || errors.Is(err, ErrRefusedTogether) {
			e.refused = now
		}
		e.delay(now)
	}
	p.mu.Unlock()
	if err != nil && !errors.Is(err, ErrNotFound) {
		p.reportFailure(ctx, vm.Group, vm.ID, err)
	}
}

// delay delays the next call for the VM, each time longer. VMs that were refused are due at
// the same times, so that one call has many of them.
func (e *entry) delay(now time.Time) {
	e.backoff = min(max(minRetryDelay, 2*e.backoff), maxRetryDelay)
	e.due = now.Add(e.backoff)
	if !e.refused.IsZero() {
		e.due = e.due.Truncate(maxRetryDelay).Add(maxRetryDelay)
	}
}
