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
func (s *Syncer) compare(b *balancer) (toRegister, toDeregister []instance.VM) {
	instances := map[string]instance.Instance{}
	for _, key := range s.Instances.Keys() {
		for _, i := range s.Instances.List(key) {
			instances[i.ID] = i
		}
	}
	s.mu.Lock()
	for id := range b.targets {
		if i, found := s.Instances.Get(id); found {
			instances[id] = i
		}
	}
	s.mu.Unlock()
	now := time.Now()
	for _, id := range slices.Sorted(maps.Keys(instances)) {
		i := instances[id]
		keys, certain := s.wantedBalancers(&i)
		intent := s.intentOf(&i, keys[b.name] && !b.dropped, certain || b.dropped)
		s.mu.Lock()
		t := b.targets[id]
		switch {
		case t == nil && intent == register:
			t = &target{group: i.Key()}
			b.targets[id] = t
		case t == nil && intent == deregister && keys[b.name] && !s.neverReported(&i):
			// The leader before may have registered it.
			t = &target{group: i.Key(), possible: true}
			b.targets[id] = t
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
func (s *Syncer) change(ctx context.Context, b *balancer, operation string, instances []instance.VM) {
	do := s.Balancers.Register
	if operation == operationDeregister {
		do = s.Balancers.Deregister
	}
	failures := 0
	var last error
	var run func([]instance.VM)
	run = func(batch []instance.VM) {
		if len(batch) == 0 || ctx.Err() != nil {
			return
		}
		if failures < maxFailures {
			last = s.call(ctx, operation, func(ctx context.Context) error { return do(ctx, b.LoadBalancer, batch) })
		}
		switch {
		case failures < maxFailures && last == nil:
			s.succeeded(ctx, b, operation, batch)
		case len(batch) == 1 || failures >= maxFailures || errors.Is(last, errNotLeading):
			failures++
			s.failed(ctx, b, operation, batch, last)
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
func (s *Syncer) succeeded(ctx context.Context, b *balancer, operation string, batch []instance.VM) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]string, 0, len(batch))
	for _, vm := range batch {
		t := b.targets[vm.ID]
		t.registered, t.deregistered = operation == operationRegister, operation == operationDeregister
		t.retryAt, t.failures = time.Time{}, 0
		ids = append(ids, vm.ID)
	}
	klog.FromContext(ctx).Info("Changed the targets of a load balancer", "operation", operation, "instances", strings.Join(ids, " "))
}

// failed stores that a call has failed, and reports it once for each group.
func (s *Syncer) failed(ctx context.Context, b *balancer, operation string, batch []instance.VM, err error) {
	report := map[instance.GroupKey]string{}
	s.mu.Lock()
	for _, vm := range batch {
		t := b.targets[vm.ID]
		t.failures++
		t.retryAt = time.Now().Add(backoff(t.failures))
		if report[t.group] == "" {
			report[t.group] = vm.ID
		}
	}
	s.mu.Unlock()
	if ctx.Err() != nil || errors.Is(err, errNotLeading) {
		return
	}
	for group, id := range report {
		err := fmt.Errorf("%s instance %s at load balancer %s: %w", operation, id, b.name, err)
		klog.FromContext(ctx).Error(err, "The targets of a load balancer could not be changed, will retry", "instances", len(batch))
		s.Failed(group, id, err)
	}
}
