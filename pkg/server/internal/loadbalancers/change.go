// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package loadbalancers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/instance"
)

// maxFailures is how many calls of one kind may fail during one synchronization. A failed
// call is repeated with halves of its instances, so that one instance that is rejected does
// not keep the others.
const maxFailures = 8

// errNotLeading means that a call was not made, because only the leader may make it.
var errNotLeading = errors.New("this server does not lead the shard")

// compare returns the instances to register and to deregister now, ordered by id.
func (s *Syncer) compare(p *part) (toRegister, toDeregister []instance.VM) {
	instances := map[string]instance.Instance{}
	for _, key := range s.Instances.Keys() {
		for _, i := range s.Instances.List(key) {
			instances[i.ID] = i
		}
	}
	s.mu.Lock()
	for id := range p.targets {
		if i, found := s.Instances.Get(id); found {
			instances[id] = i
		}
	}
	s.mu.Unlock()
	now := time.Now()
	for _, id := range slices.Sorted(maps.Keys(instances)) {
		i := instances[id]
		// The list of a group and the entries may change together. Nothing is unwanted
		// because of one that is newer than the other.
		current := s.isCurrent()
		keys, certain := s.wantedBalancers(&i)
		current = current && s.isCurrent()
		s.mu.Lock()
		entries := p.wantedBy(keys)
		intent := s.intentOf(&i, len(entries) > 0, current && (certain || p.dropped()))
		t := p.targets[id]
		switch {
		case t == nil && intent == register:
			t = &target{group: i.Key()}
			p.targets[id] = t
		case t == nil && intent == deregister && len(entries) > 0 && !s.neverReported(&i):
			// The leader before may have registered it.
			t = &target{group: i.Key(), possible: true}
			p.targets[id] = t
		}
		if t != nil && len(entries) > 0 {
			t.entries = entries
		}
		ready := t != nil && !now.Before(t.retryAt)
		switch {
		case !ready:
		case intent == register && t.needsRegistration():
			t.possible, t.listed, t.deregistered = true, false, false
			toRegister = append(toRegister, s.vm(&i))
		case intent == deregister && t.needsDeregistration():
			t.registered = false
			toDeregister = append(toDeregister, s.vm(&i))
		}
		s.mu.Unlock()
	}
	return toRegister, toDeregister
}

// vm returns an instance as the provider reports it, or else as its record has it.
func (s *Syncer) vm(i *instance.Instance) instance.VM {
	if vm, known := s.VM(i.ID); known {
		return vm
	}
	return instance.VM{ID: i.ID, ProviderID: i.ProviderID, Group: i.Key(), Origin: i.Origin()}
}

// change registers or deregisters instances.
func (r *round) change(ctx context.Context, operation string, instances []instance.VM) {
	do := r.Balancers.Register
	if operation == operationDeregister {
		do = r.Balancers.Deregister
	}
	failures := 0
	var last error
	var run func([]instance.VM)
	run = func(batch []instance.VM) {
		if len(batch) == 0 || ctx.Err() != nil {
			return
		}
		if failures < maxFailures {
			last = r.call(ctx, operation, func(ctx context.Context) error { return do(ctx, r.balancer, batch) })
		}
		switch {
		case failures < maxFailures && last == nil:
			r.succeeded(ctx, operation, batch)
		case len(batch) == 1 || failures >= maxFailures || errors.Is(last, errNotLeading):
			failures++
			r.failed(ctx, operation, batch, last)
		default:
			failures++
			run(batch[:len(batch)/2])
			run(batch[len(batch)/2:])
		}
	}
	run(instances)
}

// call makes one call, if this server leads.
func (s *Syncer) call(ctx context.Context, operation string, do func(context.Context) error) error {
	ctx, cancel := s.CallContext(ctx)
	defer cancel()
	if err := deadline.Check(ctx); err != nil {
		return errors.Join(errNotLeading, err)
	}
	err := do(ctx)
	s.Metrics.called(operation, err)
	return err
}

// succeeded stores the result of a call.
func (r *round) succeeded(ctx context.Context, operation string, batch []instance.VM) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := make([]string, 0, len(batch))
	for _, vm := range batch {
		t := r.part.targets[vm.ID]
		t.registered, t.deregistered = operation == operationRegister, operation == operationDeregister
		t.retryAt, t.failures = time.Time{}, 0
		ids = append(ids, vm.ID)
	}
	klog.FromContext(ctx).Info("Changed the targets of a load balancer", "operation", operation, "instances", strings.Join(ids, " "))
}

// failed stores that a call has failed, and reports it once for each group.
func (r *round) failed(ctx context.Context, operation string, batch []instance.VM, err error) {
	report := map[instance.GroupKey]string{}
	r.mu.Lock()
	for _, vm := range batch {
		t := r.part.targets[vm.ID]
		t.failures++
		t.retryAt = time.Now().Add(backoff(t.failures))
		if report[t.group] == "" {
			report[t.group] = vm.ID
		}
	}
	r.mu.Unlock()
	if ctx.Err() != nil || errors.Is(err, errNotLeading) {
		return
	}
	for group, id := range report {
		err := fmt.Errorf("%s instance %s at load balancer %s: %w", operation, id, r.label, err)
		klog.FromContext(ctx).Error(err, "The targets of a load balancer could not be changed, will retry", "instances", len(batch))
		r.Failed(group, id, err)
	}
}
