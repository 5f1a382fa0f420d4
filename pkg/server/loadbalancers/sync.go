// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package loadbalancers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

const (
	// minRetryDelay and maxRetryDelay bound the backoff after a failed call.
	minRetryDelay = time.Second
	maxRetryDelay = time.Minute
)

// target is what is known of an instance at one load balancer.
type target struct {
	group instance.GroupKey
	// possible is true if the instance may be a target: it was listed, or its registration
	// was requested, or it is being deleted and was not deregistered yet. It becomes false
	// when a list that follows a deregistration does not have it.
	possible bool
	// listed is true if the last list has it, and state is what it says.
	listed bool
	state  provider.TargetState
	// registered is true if a registration, and deregistered if a deregistration, has
	// succeeded since the last list.
	registered, deregistered bool
	// retryAt is when the next call may be made, and failures how many have failed in a row.
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

// sync makes one load balancer equal to what is wanted, as far as one list and a few calls
// can. It returns when to do that again, zero for never.
func (s *Syncer) sync(ctx context.Context, name string) time.Duration {
	s.mu.Lock()
	b := s.balancers[name]
	due := b != nil && !time.Now().Before(b.due)
	s.mu.Unlock()
	if b == nil {
		return 0
	}
	// The name may have changed, so that another worker has begun.
	b.working.Lock()
	defer b.working.Unlock()
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "loadBalancer", b.name)
	ctx = klog.NewContext(ctx, logger)
	changed := map[instance.GroupKey]bool{}
	if due {
		s.list(ctx, b, changed)
	}
	toRegister, toDeregister := s.compare(b)
	s.change(ctx, b, operationDeregister, toDeregister)
	s.change(ctx, b, operationRegister, toRegister)
	for key := range changed {
		s.Changed(key)
	}
	return s.next(b, len(toRegister)+len(toDeregister) > 0)
}

// list reads the targets. It adds the groups with an instance that waits no longer.
func (s *Syncer) list(ctx context.Context, b *balancer, changed map[instance.GroupKey]bool) {
	var targets []provider.Target
	err := s.call(ctx, operationList, func(ctx context.Context) (err error) {
		targets, err = s.Balancers.Targets(ctx, b.LoadBalancer)
		return err
	})
	if err != nil {
		s.mu.Lock()
		b.failures++
		b.due = time.Now().Add(backoff(b.failures))
		s.mu.Unlock()
		if ctx.Err() == nil && !errors.Is(err, errNotLeading) {
			err = fmt.Errorf("list the targets of load balancer %s: %w", b.name, err)
			klog.FromContext(ctx).Error(err, "The targets are not known, no instance of theirs is terminated before the deadline of its drain")
			s.FailedList(err)
		}
		return
	}
	own := s.own(targets)
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !b.listed
	b.listed, b.failures = true, 0
	for id, listed := range own {
		t := b.targets[id]
		if t == nil {
			t = &target{group: listed.group}
			b.targets[id] = t
		}
		t.possible = true
	}
	for id, t := range b.targets {
		listed, found := own[id]
		if !found && t.possible && (t.deregistered || t.is(provider.Draining)) {
			t.possible = false
			changed[t.group] = true
		}
		t.listed, t.state, t.registered, t.deregistered = found, listed.state, false, t.deregistered && found && listed.state == provider.Draining
		if _, known := s.Instances.Get(id); !known {
			delete(b.targets, id)
		}
	}
	if first {
		for _, key := range s.Instances.Keys() {
			changed[key] = true
		}
	}
}

// ownTarget is a target that is an instance of this shard.
type ownTarget struct {
	group instance.GroupKey
	state provider.TargetState
}

// own returns the targets that are instances with a record, by id. Those of others are left
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

// next returns when to synchronize a load balancer again, and sets when to list its
// targets. called is true if a call was due.
func (s *Syncer) next(b *balancer, called bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	inProgress := false
	retryAt := time.Time{}
	for _, t := range b.targets {
		if t.registered || t.deregistered || t.listed && t.state != provider.Registered || t.possible && !t.listed {
			inProgress = true
		}
		if t.retryAt.After(now) && (retryAt.IsZero() || t.retryAt.Before(retryAt)) {
			retryAt = t.retryAt
		}
	}
	if b.dropped && b.listed && !inProgress && !slices.ContainsFunc(slices.Collect(maps.Values(b.targets)), func(t *target) bool { return t.possible }) {
		delete(s.balancers, b.name)
		return 0
	}
	if b.failures == 0 {
		interval := idleInterval
		switch {
		case called:
			interval = confirmInterval
		case inProgress:
			interval = busyInterval
		}
		if due := now.Add(interval); b.due.Before(now) || due.Before(b.due) {
			b.due = due
		}
	}
	next := b.due
	if !retryAt.IsZero() && retryAt.Before(next) {
		next = retryAt
	}
	return max(time.Millisecond, next.Sub(now))
}

// backoff returns the delay after a number of failures.
func backoff(failures int) time.Duration {
	return min(maxRetryDelay, minRetryDelay<<min(failures-1, 10))
}
