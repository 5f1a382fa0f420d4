// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

const (
	// absencesToConfirm is how many times in succession Find must not find a machine that
	// lists leave out before it is missing.
	absencesToConfirm = 2
	// maxConfirmations is how many machines are confirmed between two lists. If many are
	// missing at once, the next lists may show that only the lists were wrong.
	maxConfirmations = 20
	// maxUnconfirmed is how many of them may fail before the others wait for the next list.
	maxUnconfirmed = 3
)

// sync lists the machines for the first time. It returns false when ctx is done.
func (p *Provider) sync(ctx context.Context) bool {
	for backoff := p.limits.PollInterval; ; backoff = min(2*backoff, p.limits.IdleInterval) {
		err := p.pollOnce(ctx)
		if err == nil {
			return true
		}
		klog.FromContext(ctx).Error(err, "Failed to list the machines, will retry")
		select {
		case <-ctx.Done():
			return false
		case <-time.After(backoff):
		}
	}
}

// pollRegularly lists the machines until ctx is done.
func (p *Provider) pollRegularly(ctx context.Context) {
	last, failures := time.Now(), 0
	for {
		interval := p.pollInterval()
		for range failures {
			interval = min(2*interval, p.limits.IdleInterval)
		}
		if !p.sleepUntil(ctx, last.Add(interval)) {
			// Something is in progress now, which shortens the interval.
			if ctx.Err() != nil {
				return
			}
			continue
		}
		last = time.Now()
		err := p.pollOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if failures++; err == nil {
			failures = 0
		} else {
			klog.FromContext(ctx).Error(err, "Failed to list the machines, will retry")
		}
	}
}

// sleepUntil returns true at a time, and false when poll was signaled or ctx is done.
func (p *Provider) sleepUntil(ctx context.Context, at time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-p.poll:
		return false
	case <-time.After(time.Until(at)):
		return true
	}
}

// pollInterval returns the time between two lists at present.
func (p *Provider) pollInterval() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.table {
		if e.inProgress() {
			return p.limits.PollInterval
		}
	}
	return p.limits.IdleInterval
}

// pollOnce lists the machines and confirms which are missing. After an error nothing is
// known: a machine that was not read is not missing.
func (p *Provider) pollOnce(ctx context.Context) error {
	began := time.Now()
	var list []VM
	err := p.read(ctx, func(ctx context.Context) (err error) {
		list, err = p.api.List(ctx)
		return err
	})
	if err != nil {
		p.restartEmptyDelay()
		return fmt.Errorf("list the machines: %w", err)
	}
	failures := 0
	for _, id := range p.apply(ctx, list, began) {
		err := p.confirm(ctx, id)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, ErrThrottled) {
			return fmt.Errorf("find the machine of instance %s: %w", id, err)
		}
		// The list has succeeded: one lookup that fails delays neither the others nor lists.
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to find a machine that was not listed, will retry", "instance", id)
			failures++
		}
		if failures == maxUnconfirmed {
			break
		}
	}
	return nil //nolint:nilerr // the list has succeeded
}

// apply updates the table from a complete list that began at a time. It returns the
// instances whose machines are left out and are to be confirmed.
func (p *Provider) apply(ctx context.Context, list []VM, began time.Time) (absent []string) {
	machines, duplicates := byID(list)
	var o outcome
	p.mu.Lock()
	shown := p.showsKnown(machines)
	for id, m := range machines {
		if p.launchEnds[id].After(began) {
			continue // the launch has the result that counts
		}
		if e, known := p.table[id]; known && e.leftOut {
			// Terminate may have failed to find the machine, too.
			e.leftOut, e.due = false, time.Time{}
		}
		p.show(m, &o)
		if count := duplicates[id]; count > 0 {
			o.fail(p.table[id], fmt.Errorf("there are %d machines of one instance", count+1))
		}
	}
	for id, e := range p.table {
		if _, listed := machines[id]; listed || e.machine == nil || p.mayBeHidden(e, began) {
			continue
		}
		if e.terminated.IsZero() || !e.terminated.Before(began) {
			absent = append(absent, id)
			// The reconciler counts them before it gives up the first one.
			e.leftOut, e.unlisted = true, true
			continue
		}
		// Its deletion was accepted, and the list confirms it.
		p.drop(e)
		o.change(e.group)
	}
	slices.SortFunc(absent, func(a, b string) int {
		return cmp.Or(p.table[a].lookedUp.Compare(p.table[b].lookedUp), strings.Compare(a, b))
	})
	clear(p.launchEnds) // the next list begins later
	if p.isEmpty(shown, len(absent) > 0) {
		absent = nil
	}
	p.mu.Unlock()
	p.reportOutcome(ctx, o)
	if len(absent) > maxConfirmations {
		klog.FromContext(ctx).Info("Many machines were not listed, confirming some of them", "machines", len(absent), "confirming", maxConfirmations)
		absent = absent[:maxConfirmations]
	}
	return absent
}

// byID returns the machines by instance id. If there are several of one instance, it is the
// one with the first provider id, and how many others there are is in duplicates.
func byID(list []VM) (machines map[string]VM, duplicates map[string]int) {
	machines, duplicates = make(map[string]VM, len(list)), map[string]int{}
	for _, m := range slices.SortedFunc(slices.Values(list), func(a, b VM) int { return strings.Compare(a.ProviderID, b.ProviderID) }) {
		if _, found := machines[m.ID]; found {
			duplicates[m.ID]++
			continue
		}
		machines[m.ID] = m
	}
	return machines, duplicates
}

// Expect adds the instances with a provider id, which lists are expected to show. Until one
// does, or they are confirmed to be missing, they count as running: nothing else is known.
// The others are searched for when they are requested or deleted.
func (p *Provider) Expect(instances []instance.VM) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, vm := range instances {
		if _, known := p.table[vm.ID]; known {
			continue
		}
		if vm.ProviderID == "" {
			p.former[vm.ID] = vm
			continue
		}
		p.table[vm.ID] = &entry{
			id: vm.ID, group: vm.Group, origin: vm.Origin, listed: true, expected: true,
			machine: &VM{ID: vm.ID, ProviderID: vm.ProviderID, Group: vm.Group, Origin: vm.Origin, State: instance.Running},
		}
	}
	p.poll.send()
}

// Refresh requests that the machines are listed soon, because something seems to be wrong
// with that of an instance.
func (p *Provider) Refresh(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, known := p.table[id]; known && e.machine != nil && !e.refresh {
		e.refresh = true
		p.poll.send()
	}
}

// mayBeHidden reports whether a list that began at a time need not show a machine. mu must
// be locked.
func (p *Provider) mayBeHidden(e *entry, began time.Time) bool {
	return began.Before(e.launched) || !e.listed && began.Before(e.launched.Add(p.limits.VisibilityDelay))
}

// show updates the table with a machine that exists. mu must be locked.
func (p *Provider) show(m VM, o *outcome) {
	e, known := p.table[m.ID]
	if !known {
		e = &entry{id: m.ID}
		p.table[m.ID] = e
	}
	delete(p.former, m.ID)
	if e.request != nil && e.request.launching {
		return
	}
	before := e.vm()
	if e.request != nil {
		p.adopt(e, m, time.Now())
	}
	if !e.listed {
		// Terminate may not have known the machine yet.
		e.due = time.Time{}
	}
	e.listed, e.expected, e.refresh, e.unlisted = true, false, false, false
	e.absences = 0
	e.update(m)
	if err := p.judge(e); err != nil {
		o.fail(e, err)
	}
	if e.delete {
		p.terminate.send()
	}
	if known && before.Equal(e.vm()) {
		return
	}
	if known && before.Group != e.group {
		o.change(before.Group)
	}
	o.change(e.group)
}

// confirm looks for the machine of one instance that a list has left out.
func (p *Provider) confirm(ctx context.Context, id string) error {
	m, found, err := p.find(ctx, id)
	var o outcome
	p.mu.Lock()
	e, known := p.table[id]
	if known {
		e.lookedUp = time.Now()
	}
	switch {
	case err != nil:
	case found:
		p.show(m, &o)
	case !known || e.machine == nil:
	default:
		if e.absences++; e.absences >= absencesToConfirm {
			klog.FromContext(ctx).Info("The machine of an instance does not exist any more", "instance", id, "providerID", e.machine.ProviderID)
			p.drop(e)
			o.change(e.group)
		}
	}
	p.mu.Unlock()
	p.reportOutcome(ctx, o)
	return err
}

// showsKnown reports whether a list shows a machine that was known before, or before lists began
// to show none. mu must be locked.
func (p *Provider) showsKnown(machines map[string]VM) bool {
	for id := range machines {
		if e := p.table[id]; e != nil && e.listed && (p.emptySince.IsZero() || e.launched.Before(p.emptySince)) {
			return true
		}
	}
	return false
}

// isEmpty reports whether a list that has left out machines, and has shown none that was known,
// proves nothing yet. mu must be locked.
func (p *Provider) isEmpty(shown, absent bool) bool {
	if shown || !absent {
		p.emptySince = time.Time{}
		return false
	}
	if p.emptySince.IsZero() {
		p.emptySince = time.Now()
	}
	return time.Since(p.emptySince) < p.limits.EmptyDelay
}

// restartEmptyDelay begins the time anew in which lists have shown nothing, because one has
// failed.
func (p *Provider) restartEmptyDelay() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.emptySince.IsZero() {
		p.emptySince = time.Now()
	}
}

var _ provider.Finder = (*Provider)(nil)

// Find reads the machine of one instance from the cloud. The table stays as it is.
func (p *Provider) Find(ctx context.Context, id string) (instance.VM, bool, error) {
	m, found, err := p.find(ctx, id)
	if err != nil {
		return instance.VM{}, false, fmt.Errorf("find the machine of instance %s: %w", id, err)
	}
	if !found {
		return instance.VM{}, false, nil
	}
	return (&entry{id: id, group: m.Group, origin: m.Origin, machine: &m, listed: true}).vm(), true, nil
}

// find reads the machine of an instance.
func (p *Provider) find(ctx context.Context, id string) (m VM, found bool, err error) {
	var known VM
	p.mu.Lock()
	if e := p.table[id]; e != nil && e.machine != nil {
		known = *e.machine
	}
	p.mu.Unlock()
	finder, byProviderID := p.api.(KnownFinder)
	err = p.read(ctx, func(ctx context.Context) (err error) {
		if byProviderID && known.ProviderID != "" {
			m, found, err = finder.FindKnown(ctx, known)
			return err
		}
		m, found, err = p.api.Find(ctx, id)
		return err
	})
	return m, found, err
}
