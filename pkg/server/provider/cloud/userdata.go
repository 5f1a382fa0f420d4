// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// userdataRetryDelay is the delay after a failed attempt to remove userdata. Nothing waits for it.
const userdataRetryDelay = 5 * time.Minute

// userdata says whether the userdata of a VM is removed.
type userdata struct {
	// unneeded is true once the removal was requested, and removed once this process has removed
	// the userdata.
	unneeded, removed bool
	// due is when the next attempt may be made.
	due time.Time
}

var _ provider.UserdataRemover = (*Provider)(nil)

// RemoveUserdata requests that the userdata of an instance is removed.
func (p *Provider) RemoveUserdata(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, known := p.table[id]; known && !e.userdata.unneeded {
		e.userdata.unneeded = true
		p.clean.send()
	}
}

// removeUserdataDue removes the userdata of VMs, one after another, until ctx is done.
func (p *Provider) removeUserdataDue(ctx context.Context, remover UserdataRemover) {
	for {
		vm, found, wait := p.nextUserdata(time.Now())
		if found {
			p.removeUserdata(ctx, remover, vm)
			continue
		}
		var timer <-chan time.Time
		if wait > 0 {
			timer = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.clean:
		case <-timer:
		}
	}
}

// nextUserdata returns a VM whose userdata is to be removed now. If there is none, it returns the
// time until the next is due, or zero for never.
func (p *Provider) nextUserdata(now time.Time) (vm VM, found bool, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.table {
		if !e.userdata.unneeded || e.userdata.removed || e.leaving() {
			continue
		}
		runs := e.vm != nil && e.listed && e.vm.State == instance.Running && e.vm.Unidentified == ""
		delay := e.userdata.due.Sub(now)
		switch {
		case delay <= 0 && runs:
			return *e.vm, true, 0
		case delay <= 0:
			delay = userdataRetryDelay // it may run then
		}
		if wait == 0 || delay < wait {
			wait = delay
		}
	}
	return VM{}, false, wait
}

func (p *Provider) removeUserdata(ctx context.Context, remover UserdataRemover, vm VM) {
	err := p.write(ctx, func(ctx context.Context) error { return remover.RemoveUserdata(ctx, vm) })
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Info("Failed to remove the userdata of a machine, will retry", "instance", vm.ID, "reason", err.Error())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, known := p.table[vm.ID]; known {
		e.userdata.removed, e.userdata.due = err == nil, time.Now().Add(userdataRetryDelay)
	}
}
