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
	"nstance.dev/operator/pkg/server/provider"
)

const (
	// minRetryDelay and maxRetryDelay bound the backoff after a failed call.
	minRetryDelay = time.Second
	maxRetryDelay = time.Minute
)

// target is the state of an instance at one part.
type target struct {
	group instance.GroupKey
	// entries are the entries that wanted the instance last, nil if no entry ever did.
	entries []string
	// possible is true if the instance may be a target: it was listed, or its registration
	// was requested, or it is being deleted and was not deregistered yet. It becomes false
	// when a list after a deregistration lacks it.
	possible bool
	// listed is true if the last list has it, in this state.
	listed bool
	state  provider.TargetState
	// registered is true if a registration, and deregistered if a deregistration, has
	// succeeded since the last list.
	registered, deregistered bool
	// retryAt is when the next call may be made, and failures the number of failed calls in a
	// row.
	retryAt  time.Time
	failures int
}

// is reports whether the last list has the target in a state.
func (t *target) is(state provider.TargetState) bool { return t.listed && t.state == state }

// needsRegistration reports whether a call is needed to make it a target.
func (t *target) needsRegistration() bool { return !t.registered && !t.is(provider.Registered) }

// needsDeregistration reports whether a call is needed to remove it.
func (t *target) needsDeregistration() bool {
	return t.possible && !t.deregistered && !t.is(provider.Draining)
}

// round is one synchronization of a part.
type round struct {
	*Syncer
	part *part
	// balancer and label are the values of the part when the round began.
	balancer provider.LoadBalancer
	label    string
}

// sync makes the targets of one part equal to the wanted targets, as far as one list and a
// few calls can. It returns when to sync again, zero for never.
func (s *Syncer) sync(ctx context.Context, name string) time.Duration {
	s.mu.Lock()
	p := s.parts[name]
	if p == nil {
		s.mu.Unlock()
		return 0
	}
	due, label := !time.Now().Before(p.due), strings.Join(p.labels(), ", ")
	r := round{Syncer: s, part: p, balancer: p.balancer, label: label}
	s.mu.Unlock()
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "loadBalancer", label)
	ctx = klog.NewContext(ctx, logger)
	changed := map[instance.GroupKey]bool{}
	if due {
		r.list(ctx, changed)
	}
	toRegister, toDeregister := s.compare(p)
	r.change(ctx, operationDeregister, toDeregister)
	r.change(ctx, operationRegister, toRegister)
	for key := range changed {
		s.Changed(key)
	}
	return s.next(name, p, len(toRegister)+len(toDeregister) > 0)
}

// list reads the targets. It adds the groups with an instance that no longer waits.
func (r *round) list(ctx context.Context, changed map[instance.GroupKey]bool) {
	var targets []provider.Target
	err := r.call(ctx, operationList, func(ctx context.Context) (err error) {
		targets, err = r.Balancers.Targets(ctx, r.balancer)
		return err
	})
	if err != nil {
		r.mu.Lock()
		r.part.failures++
		r.part.due = time.Now().Add(backoff(r.part.failures))
		r.mu.Unlock()
		if ctx.Err() == nil && !errors.Is(err, errNotLeading) {
			err = fmt.Errorf("list the targets of load balancer %s: %w", r.label, err)
			klog.FromContext(ctx).Error(err, "The targets are not known, no instance of theirs is terminated before the deadline of its drain")
			r.FailedList(err)
		}
		return
	}
	own := r.own(targets)
	r.mu.Lock()
	defer r.mu.Unlock()
	first := !r.part.listed
	r.part.listed, r.part.failures = true, 0
	for id, listed := range own {
		t := r.part.targets[id]
		if t == nil {
			t = &target{group: listed.group}
			r.part.targets[id] = t
		}
		t.possible = true
	}
	for id, t := range r.part.targets {
		listed, found := own[id]
		if !found && t.possible && (t.deregistered || t.is(provider.Draining)) {
			t.possible = false
			changed[t.group] = true
		}
		t.listed, t.state, t.registered, t.deregistered = found, listed.state, false, t.deregistered && found && listed.state == provider.Draining
		if _, known := r.Instances.Get(id); !known {
			delete(r.part.targets, id)
		}
	}
	if first {
		for _, key := range r.Instances.Keys() {
			changed[key] = true
		}
	}
}

// ownTarget is a target that is an instance of this shard.
type ownTarget struct {
	group instance.GroupKey
	state provider.TargetState
}

// own returns the targets that are instances with a record, by id. Other targets are left
// alone.
func (s *Syncer) own(targets []provider.Target) map[string]ownTarget {
	own := map[string]ownTarget{}
	var byProviderID map[string]string
	for _, t := range targets {
		id := t.ID
		if id == "" && t.ProviderID != "" {
			if byProviderID == nil {
				byProviderID = s.byProviderID()
			}
			id = byProviderID[t.ProviderID]
		}
		if id == "" {
			continue
		}
		if i, found := s.Instances.Get(id); found {
			own[id] = ownTarget{i.Key(), t.State}
		}
	}
	return own
}

// byProviderID returns the ids of all instances by their provider id.
func (s *Syncer) byProviderID() map[string]string {
	ids := map[string]string{}
	for _, key := range s.Instances.Keys() {
		for _, i := range s.Instances.List(key) {
			if vm, known := s.VM(i.ID); known && vm.ProviderID != "" {
				ids[vm.ProviderID] = i.ID
			} else if i.ProviderID != "" {
				ids[i.ProviderID] = i.ID
			}
		}
	}
	return ids
}

// next returns when to synchronize a part again, and sets when to list its
// targets. called is true if a call was due.
func (s *Syncer) next(name string, p *part, called bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	inProgress := false
	retryAt := time.Time{}
	for _, t := range p.targets {
		if t.registered || t.deregistered || t.listed && t.state != provider.Registered || t.possible && !t.listed {
			inProgress = true
		}
		if t.retryAt.After(now) && (retryAt.IsZero() || t.retryAt.Before(retryAt)) {
			retryAt = t.retryAt
		}
	}
	if p.dropped() && p.listed && !inProgress && !slices.ContainsFunc(slices.Collect(maps.Values(p.targets)), func(t *target) bool { return t.possible }) {
		delete(s.parts, name)
		return 0
	}
	if p.failures == 0 {
		interval := idleInterval
		switch {
		case called:
			interval = confirmInterval
		case inProgress:
			interval = busyInterval
		}
		if due := now.Add(interval); p.due.Before(now) || due.Before(p.due) {
			p.due = due
		}
	}
	next := p.due
	if !retryAt.IsZero() && retryAt.Before(next) {
		next = retryAt
	}
	return max(time.Millisecond, next.Sub(now))
}

// backoff returns the delay after a number of failures.
func backoff(failures int) time.Duration {
	return min(maxRetryDelay, minRetryDelay<<min(failures-1, 10))
}

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
		// The list of a group and the entries may change together. No target is deregistered
		// while the parts and the configuration differ.
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
			// The previous leader may have registered it.
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

// vm returns an instance as the provider reports it, or else from its record.
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
