// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// renewAfter is how long after its request a launch that has waited or is in progress needs a new
// request: the nonce in the userdata is valid for a few minutes only.
const renewAfter = time.Minute

// work makes the next step of one request. It returns false when the queue has shut down.
func (p *Provider) work(ctx context.Context) bool {
	id, shutdown := p.launches.Get()
	if shutdown {
		return false
	}
	defer p.launches.Done(id)
	group, request, deleted := p.pending(id)
	if request == nil {
		p.launches.Forget(id)
		return true
	}
	again, err := p.advance(ctx, id, *request, deleted)
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		p.reportFailure(ctx, group, id, err)
		p.launches.AddRateLimited(id)
	default:
		p.launches.Forget(id)
		if again > 0 {
			p.launches.AddAfter(id, again)
		}
	}
	return true
}

// pending returns a copy of the request for an instance, or nil if it has no request.
func (p *Provider) pending(id string) (group instance.GroupKey, r *request, deleted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, known := p.table[id]
	if !known || e.request == nil {
		return instance.GroupKey{}, nil, false
	}
	r = new(request)
	*r = *e.request
	return e.group, r, e.delete
}

// advance makes the next step of a request. It returns the delay until the step after it,
// or zero if no step follows. The queue never gives an id to two workers, so a deletion
// cannot overtake a running launch.
func (p *Provider) advance(ctx context.Context, id string, r request, deleted bool) (again time.Duration, err error) {
	if r.search || deleted && r.uncertain {
		vm, found, err := p.find(ctx, id)
		switch {
		case err != nil:
			return 0, fmt.Errorf("find the machine of instance %s: %w", id, err)
		case found:
			p.settle(ctx, id, vm, true)
			return 0, nil
		case time.Now().Before(r.hiddenUntil):
			return p.limits.PollInterval, nil
		}
		p.endSearch(id)
		r.uncertain = false
	}
	if deleted {
		p.remove(id)
		return 0, nil
	}
	return p.launch(ctx, id, r)
}

// endSearch stores that the VM of a request does not exist.
func (p *Provider) endSearch(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.former, id)
	e, known := p.table[id]
	if !known || e.request == nil {
		return
	}
	if e.request.tokenUsed {
		p.useUpToken(id, time.Now())
	}
	e.request.search, e.request.tokenUsed, e.request.uncertain = false, false, false
}

// remove removes the request of an instance that was deleted before it had a VM.
func (p *Provider) remove(id string) {
	p.mu.Lock()
	e, known := p.table[id]
	known = known && e.request != nil
	if known {
		p.drop(e)
	}
	p.mu.Unlock()
	if known {
		p.changed(e.group)
	}
}

// drop removes an entry. mu must be locked.
func (p *Provider) drop(e *entry) {
	delete(p.table, e.id)
	p.rejections.release(e.id)
	for subnet, room := range p.rooms {
		room.outdated = true
		p.rooms[subnet] = room
	}
}

// launch launches the VM of a request. If the launch is in progress, it returns when to
// repeat the call, or else zero.
func (p *Provider) launch(ctx context.Context, id string, r request) (again time.Duration, err error) {
	spec := r.spec
	p.mu.Lock()
	rejected := p.rejections.check(spec, time.Now())
	token := p.token(id)
	p.mu.Unlock()
	// A VM that may exist is not given up.
	if rejected != nil && !r.uncertain {
		p.giveUp(ctx, spec, rejected, nil)
		return 0, nil
	}
	if !r.isOld() {
		if err := p.writes.wait(ctx); err != nil {
			return 0, err
		}
	}
	if r.isOld() {
		p.renew(id, r.uncertain)
		return 0, nil
	}
	var vm VM
	called := false
	err = p.writeNow(ctx, func(ctx context.Context) (err error) {
		called = true
		p.setLaunching(id, true)
		defer p.setLaunching(id, false)
		vm, err = p.api.Launch(ctx, Request{Spec: spec, Token: token})
		return err
	})
	rejection, isRejection := asRejection(err)
	switch {
	case err == nil:
		p.settle(ctx, id, vm, false)
		return 0, nil
	case isRejection && r.uncertain:
		// The cloud has rejected this call. An earlier call got no response.
		p.searchRejected(id, rejection)
		return 0, nil
	case isRejection:
		p.giveUp(ctx, spec, err, rejection)
		return 0, nil
	case errors.Is(err, ErrTokenUsed):
		// This process or another one has launched the VM before.
		p.searchLaunched(id)
		return 0, nil
	case errors.Is(err, ErrInProgress):
		p.markUncertain(id)
		return p.limits.PollInterval, nil
	case called && !errors.Is(err, ErrThrottled):
		p.markUncertain(id)
	}
	return 0, fmt.Errorf("launch the machine of instance %s: %w", id, err)
}

// isOld reports whether the caller must request the instance again, with another nonce.
func (r *request) isOld() bool { return time.Since(r.created) > renewAfter }

// setLaunching stores whether a call for the request of an instance is in progress.
func (p *Provider) setLaunching(id string, launching bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !launching {
		p.launchEnds[id] = time.Now()
	}
	if e, known := p.table[id]; known && e.request != nil {
		e.request.launching = launching
	}
}

// settle stores the VM of a request as the result of a launch or a search.
func (p *Provider) settle(ctx context.Context, id string, vm VM, listed bool) {
	now := time.Now()
	p.mu.Lock()
	e, known := p.table[id]
	if !known || e.request == nil {
		p.mu.Unlock()
		return // a list has shown the VM before
	}
	p.adopt(e, vm, now)
	e.listed = listed || p.limits.VisibilityDelay == 0
	deleted, group, failure := e.delete, e.group, p.judge(e)
	if e.isOver(vm) {
		p.drop(e)
	}
	p.mu.Unlock()
	if failure != nil {
		p.reportFailure(ctx, group, id, failure)
	}
	if deleted {
		p.terminate.send()
	}
	p.poll.send()
	p.changed(group)
}

// adopt assigns a VM to an entry that has a request. mu must be locked.
func (p *Provider) adopt(e *entry, vm VM, now time.Time) {
	spec, found := e.request.spec, e.request.search
	spec.Userdata, spec.Args = nil, nil
	e.spec, e.request, e.launched = &spec, nil, now
	e.update(vm)
	if !found {
		p.rejections.launched(spec)
	}
}

// judge updates the rejections by the state of a VM that this process has launched. It
// returns the reason if the VM has failed, or has ended for lack of capacity, before it was
// running. mu must be locked.
func (p *Provider) judge(e *entry) error {
	if e.spec == nil {
		return nil
	}
	neverRan := !e.ran && !e.delete
	switch {
	case e.vm.State == instance.Running:
		p.rejections.running(*e.spec)
	case neverRan && e.vm.NoCapacity:
		// The reason is left out of the CapacityError: it may differ each time.
		return p.failedToRun(e, fmt.Errorf("%w: %s", provider.OutOfCapacity("the launch of %s has ended for lack of capacity", e.spec.TypeInMarket()), e.vm.Reason))
	case neverRan && e.vm.State == instance.Failed:
		return p.failedToRun(e, errors.New(e.vm.Reason))
	}
	return nil
}

// failedToRun stores and returns the reason why a VM has not run. mu must be locked.
func (p *Provider) failedToRun(e *entry, reason error) error {
	// The next call of judge must not report it again.
	spec := *e.spec
	e.spec = nil
	err := fmt.Errorf("the machine has failed before it was running: %w", reason)
	p.rejections.failedToRun(spec, err, time.Now())
	return err
}

// searchLaunched starts a search because a VM was launched with the token of the request.
func (p *Provider) searchLaunched(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, known := p.table[id]; known && e.request != nil {
		e.request.search, e.request.tokenUsed = true, true
		e.request.hiddenUntil = time.Now().Add(p.limits.VisibilityDelay)
		p.launches.Add(id)
	}
}

// searchRejected stores a rejection of a request whose VM may exist. If the search does not
// find the VM, the request is given up.
func (p *Provider) searchRejected(id string, rejection *Rejection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rejections.rejected(rejection, time.Now())
	if e, known := p.table[id]; known && e.request != nil {
		// If there is no VM, the next request has another token, as after any other rejection.
		e.request.search, e.request.tokenUsed = true, true
		p.launches.Add(id)
	}
}

// markUncertain stores that the VM of a request may exist.
func (p *Provider) markUncertain(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, known := p.table[id]; known && e.request != nil {
		e.request.uncertain = true
		e.request.hiddenUntil = time.Now().Add(p.limits.VisibilityDelay)
	}
	p.poll.send()
}

// renew removes a request whose nonce would expire too early. The caller requests the instance
// again, with the same id and other userdata, or deletes the instance. uncertain is true if the
// VM may exist: then the next request continues the launch, whatever else it requests.
func (p *Provider) renew(id string, uncertain bool) {
	p.mu.Lock()
	if e, known := p.table[id]; known && e.request != nil {
		spec := e.request.spec
		spec.Userdata = nil // has a secret
		p.renewed[id] = entry{id: id, group: e.group, origin: e.origin, request: &request{spec: spec, uncertain: uncertain, hiddenUntil: e.request.hiddenUntil}}
	}
	p.mu.Unlock()
	p.remove(id)
}

var _ provider.Renewer = (*Provider)(nil)

// Renews implements provider.Renewer.
func (p *Provider) Renews(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, renewed := p.renewed[id]
	return renewed
}

// giveUp removes a rejected request. The caller may create another instance instead.
// rejection is nil if the cloud was not called.
func (p *Provider) giveUp(ctx context.Context, spec provider.Spec, err error, rejection *Rejection) {
	klog.FromContext(ctx).Info("Instance was rejected, will not retry", "instance", spec.ID, "reason", err)
	p.failed(spec.Group, spec.ID, fmt.Errorf("launch the machine of instance %s: %w", spec.ID, err))
	now := time.Now()
	p.mu.Lock()
	if rejection != nil {
		p.useUpToken(spec.ID, now)
		p.rejections.rejected(rejection, now)
	}
	if e, known := p.table[spec.ID]; known && e.request != nil {
		p.drop(e)
	}
	p.mu.Unlock()
	p.changed(spec.Group)
}
