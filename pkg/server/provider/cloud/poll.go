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
	// absencesToConfirm is how many times in succession Find must not find a VM that lists
	// leave out before it is missing.
	absencesToConfirm = 2
	// maxConfirmations is how many VMs are confirmed between two lists. If many are missing at
	// once, the next list may show that only the last list was wrong.
	maxConfirmations = 20
	// maxUnconfirmed is how many confirmations may fail before the rest waits for the next list.
	maxUnconfirmed = 3
)

// sync lists the VMs for the first time. It returns false when ctx is done.
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

// pollRegularly lists the VMs until ctx is done.
func (p *Provider) pollRegularly(ctx context.Context) {
	last, failures := time.Now(), 0
	for {
		interval := p.pollInterval()
		for range failures {
			interval = min(2*interval, p.limits.IdleInterval)
		}
		if !p.sleepUntil(ctx, last.Add(interval)) {
			// A request or deletion has begun, which shortens the interval.
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

// sleepUntil returns true at a time, and false if poll was signaled or ctx is done before.
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

// pollInterval returns the current time between two lists.
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

// pollOnce lists the VMs and confirms which are missing. An error changes nothing: a VM that
// could not be read is not missing.
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
		// The list has succeeded: one failed lookup delays neither other lookups nor lists.
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

// apply updates the table from a complete list that began at a time. It returns the ids of
// the instances whose VMs the list leaves out, which have to be confirmed.
func (p *Provider) apply(ctx context.Context, list []VM, began time.Time) (absent []string) {
	vms, duplicates := byID(list)
	var o outcome
	p.mu.Lock()
	shown := p.showsKnown(vms)
	for id, vm := range vms {
		if p.launchEnds[id].After(began) {
			continue // the result of the launch counts
		}
		if vm.Ended && !p.concerns(vm) {
			delete(vms, id) // it was deleted before, or is another VM than the known one
			continue
		}
		if _, known := p.table[id]; !known && vm.Unidentified != "" {
			logUnidentified(ctx, vm)
			continue
		}
		if e, known := p.table[id]; known && e.leftOut {
			// Terminate may not have found the VM either.
			e.leftOut, e.due = false, time.Time{}
		}
		p.show(vm, &o)
		if count := duplicates[id]; count > 0 {
			o.fail(p.table[id], fmt.Errorf("there are %d machines of one instance", count+1))
		}
	}
	for id, e := range p.table {
		if _, listed := vms[id]; listed || e.vm == nil || p.mayBeHidden(e, began) {
			continue
		}
		if e.terminated.IsZero() || !e.terminated.Before(began) {
			absent = append(absent, id)
			// The reconciler counts unlisted instances before it gives up the first one.
			e.leftOut, e.unlisted = true, true
			continue
		}
		// The deletion was accepted, and the list confirms it.
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

// Expect adds the instances with a provider id. Until a list shows their VMs, or they are
// confirmed to be missing, they count as running, because nothing else is known. The VMs of
// the other instances are searched for when the instances are requested or deleted.
func (p *Provider) Expect(instances []instance.VM) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range instances {
		if _, known := p.table[i.ID]; known {
			continue
		}
		if i.ProviderID == "" {
			p.former[i.ID] = i
			continue
		}
		p.table[i.ID] = &entry{
			id: i.ID, group: i.Group, origin: i.Origin, listed: true, expected: true,
			vm: &VM{ID: i.ID, ProviderID: i.ProviderID, Group: i.Group, Origin: i.Origin, State: instance.Running},
		}
	}
	p.poll.send()
}

// Refresh requests a list soon, because the VM of an instance seems to have a problem.
func (p *Provider) Refresh(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, known := p.table[id]; known && e.vm != nil && !e.refresh {
		e.refresh = true
		p.poll.send()
	}
}

// mayBeHidden reports whether a list that began at a time need not show the VM. mu must be
// locked.
func (p *Provider) mayBeHidden(e *entry, began time.Time) bool {
	return began.Before(e.launched) || !e.listed && began.Before(e.launched.Add(p.limits.VisibilityDelay))
}

// show updates the table with an existing VM. mu must be locked.
func (p *Provider) show(vm VM, o *outcome) {
	e, known := p.table[vm.ID]
	switch {
	case !known && vm.Unidentified != "":
		return
	case !known:
		e = &entry{id: vm.ID}
		p.table[vm.ID] = e
	}
	delete(p.former, vm.ID)
	delete(p.gone, vm.ID)
	delete(p.renewed, vm.ID)
	if e.request != nil && e.request.launching {
		return
	}
	before := e.instanceVM()
	if e.request != nil {
		p.adopt(e, vm, time.Now())
	}
	if !e.listed {
		// Terminate may not have known the VM yet.
		e.due = time.Time{}
	}
	e.listed, e.expected, e.refresh, e.unlisted = true, false, false, false
	e.absences = 0
	if e.isOver(vm) {
		p.drop(e)
		o.change(e.group)
		return
	}
	e.update(vm)
	if vm.Unidentified != e.unidentified {
		if e.unidentified = vm.Unidentified; vm.Unidentified != "" {
			o.fail(e, fmt.Errorf("the machine cannot be identified: %s; it is kept as its record says, and not terminated until that is corrected", vm.Unidentified))
		}
	}
	if err := p.judge(e); err != nil {
		o.fail(e, err)
	}
	if e.delete {
		p.terminate.send()
	}
	if known && before.Equal(e.instanceVM()) {
		return
	}
	if known && before.Group != e.group {
		o.change(before.Group)
	}
	o.change(e.group)
}

// confirm searches the VM of an instance that a list has left out.
func (p *Provider) confirm(ctx context.Context, id string) error {
	vm, found, err := p.find(ctx, id)
	var o outcome
	p.mu.Lock()
	e, known := p.table[id]
	if known {
		e.lookedUp = time.Now()
	}
	switch {
	case err != nil:
	case found && (!vm.Ended || p.concerns(vm)):
		p.show(vm, &o)
	case !known || e.vm == nil:
	default:
		if e.absences++; e.absences >= absencesToConfirm {
			klog.FromContext(ctx).Info("The machine of an instance does not exist any more", "instance", id, "providerID", e.vm.ProviderID)
			if !e.delete {
				p.gone[id] = *e.vm
			}
			p.drop(e)
			o.change(e.group)
		}
	}
	p.mu.Unlock()
	p.reportOutcome(ctx, o)
	return err
}

// showsKnown reports whether a list shows a VM that was known before, or before lists began
// to be empty. mu must be locked.
func (p *Provider) showsKnown(vms map[string]VM) bool {
	for id := range vms {
		if e := p.table[id]; e != nil && e.listed && (p.emptySince.IsZero() || e.launched.Before(p.emptySince)) {
			return true
		}
	}
	return false
}

// isEmpty reports whether a list proves nothing yet because it has left out VMs and has shown
// no known VM. mu must be locked.
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

// restartEmptyDelay restarts the EmptyDelay because a list has failed: only lists that
// succeed count.
func (p *Provider) restartEmptyDelay() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.emptySince.IsZero() {
		p.emptySince = time.Now()
	}
}

var _ provider.Finder = (*Provider)(nil)

// Find reads the VM of one instance from the cloud. It does not update the table.
func (p *Provider) Find(ctx context.Context, id string) (instance.VM, bool, error) {
	vm, found, err := p.find(ctx, id)
	if err != nil {
		return instance.VM{}, false, fmt.Errorf("find the machine of instance %s: %w", id, err)
	}
	if !found || vm.Ended {
		return instance.VM{}, false, nil
	}
	return (&entry{id: id, group: vm.Group, origin: vm.Origin, vm: &vm, listed: true}).instanceVM(), true, nil
}

// find reads the VM of an instance, by its provider id if that is known and the API can.
func (p *Provider) find(ctx context.Context, id string) (vm VM, found bool, err error) {
	var known VM
	p.mu.Lock()
	if e := p.table[id]; e != nil && e.vm != nil {
		known = *e.vm
	}
	p.mu.Unlock()
	finder, byProviderID := p.api.(KnownFinder)
	err = p.read(ctx, func(ctx context.Context) (err error) {
		if byProviderID && known.ProviderID != "" {
			vm, found, err = finder.FindKnown(ctx, known)
			return err
		}
		vm, found, err = p.api.Find(ctx, id)
		return err
	})
	return vm, found, err
}
