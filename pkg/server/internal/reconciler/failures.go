// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// minCreateDelay and maxCreateDelay bound the delay after an instance that did not come up.
const (
	minCreateDelay = 15 * time.Second
	maxCreateDelay = 15 * time.Minute
)

// failures contains the groups whose latest instance did not come up. A new
// leader starts without failures, and so creates one instance at once.
type failures struct {
	mu      sync.Mutex
	byGroup map[instance.GroupKey]failed
}

// failed is a series of failures with one configuration.
type failed struct {
	// configHashes are the hashes of the group's configuration.
	configHashes string
	count        int
	at           time.Time
	// until is when another instance may be created.
	until time.Time
}

// configHashes identifies the configuration that may be the cause of a failure.
func configHashes(group *groups.Group) string {
	return group.InfraConfig() + group.RuntimeConfigHash
}

// add records a failure. Failures of instances that were created together count once.
func (f *failures) add(group *groups.Group, now time.Time) (until time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	current := f.byGroup[group.Key]
	if current.configHashes != configHashes(group) {
		current = failed{configHashes: configHashes(group)}
	}
	if !now.Before(current.until) {
		current.until = now.Add(min(maxCreateDelay, minCreateDelay<<min(current.count, 10)))
		current.count++
	}
	current.at = now
	if f.byGroup == nil {
		f.byGroup = map[instance.GroupKey]failed{}
	}
	f.byGroup[group.Key] = current
	return current.until
}

// createAfter returns when the next instance of a group may be created, the zero time
// without a failure. Another configuration and an instance that has come up since end a
// series.
func (f *failures) createAfter(group *groups.Group, instances []instance.Instance) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	current, found := f.byGroup[group.Key]
	if !found {
		return time.Time{}
	}
	over := current.configHashes != configHashes(group)
	for n := range instances {
		i := &instances[n]
		over = over || i.Agent.State == instance.AgentReporting && i.Registration != nil && i.Registration.RegisteredAt.After(current.at)
	}
	if over {
		delete(f.byGroup, group.Key)
		return time.Time{}
	}
	return current.until
}

// neverUp reports an instance that is given up because its agent has not registered, or because its
// machine is not ready, and delays the next instance.
func (r *reconciliation) neverUp(ctx context.Context, i *instance.Instance) {
	timeout := r.config.Shard.GarbageCollection.RegistrationTimeout
	seen := "no request with its nonce has arrived"
	if i.Agent.Refused != "" {
		seen = "its last request was refused: " + i.Agent.Refused
	}
	err := fmt.Errorf("instance %s runs, and its agent has not registered within %s, %s: it is deleted", i.ID, timeout, seen)
	if i.Agent.NotReady != "" {
		err = fmt.Errorf("instance %s runs, and is not ready after %s, %s: it is deleted", i.ID, timeout, i.Agent.NotReady)
	}
	if !i.OnDemand {
		until := r.failures.add(r.group, time.Now())
		err = fmt.Errorf("%w, and the next one is created in %s; check the userdata of template %q",
			err, time.Until(until).Round(time.Second), r.group.Template)
	}
	klog.FromContext(ctx).Error(err, "An instance is not up in time", "instance", i.ID)
	r.Failed(r.key, i.ID, err)
}

// minOnDemandDelay and maxOnDemandDelay bound the delay after a failed on-demand instance,
// before another instance like it is tried.
const (
	minOnDemandDelay = time.Second
	maxOnDemandDelay = 30 * time.Second
)

// onDemandBackoff remembers which kinds of on-demand instances could not be created last.
// Without it each new request would try all waiting requests again.
type onDemandBackoff struct {
	mu     sync.Mutex
	byKind map[onDemandKind]onDemandFailure
}

// onDemandKind has the properties on which the creation of an on-demand instance depends.
type onDemandKind struct {
	group                                    instance.GroupKey
	template, instanceType, subnetPool, vars string
}

func kindOf(record *instance.Record) onDemandKind {
	return onDemandKind{record.Key(), record.Template, record.InstanceType, record.SubnetPool, fmt.Sprint(record.Vars)}
}

// onDemandFailure is the latest failure of a kind.
type onDemandFailure struct {
	at    time.Time
	delay time.Duration
}

// wait returns how long instances of a kind wait.
func (b *onDemandBackoff) wait(kind onDemandKind, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := b.byKind[kind]
	return last.at.Add(last.delay).Sub(now)
}

// done records the result of an attempt.
func (b *onDemandBackoff) done(kind onDemandKind, now time.Time, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		delete(b.byKind, kind)
		return
	}
	for other, failure := range b.byKind {
		if now.Sub(failure.at) > 2*maxOnDemandDelay {
			delete(b.byKind, other)
		}
	}
	if b.byKind == nil {
		b.byKind = map[onDemandKind]onDemandFailure{}
	}
	b.byKind[kind] = onDemandFailure{at: now, delay: min(max(minOnDemandDelay, 2*b.byKind[kind].delay), maxOnDemandDelay)}
}

// Shortfalls contains the groups for which the provider has no capacity or quota. It is a
// state and has no clock: a further attempt that fails for the same reason changes nothing. A
// new leader starts without shortfalls and finds them with its first attempts. The zero value
// is empty.
type Shortfalls struct {
	mu      sync.Mutex
	byGroup map[instance.GroupKey]shortfall
}

// shortfall is the lack of capacity that the last attempts for a group have encountered.
type shortfall struct {
	// infraConfig identifies the settings of the group. Others need another capacity.
	infraConfig string
	message     string
	// known are the instances that the provider listed at that time. A new instance disproves
	// the shortfall.
	known map[string]bool
}

// Of returns how many of these managed instances of a group are missing because the provider
// has no capacity, and the reason; zero without a shortfall. An instance counts from the
// moment when its provider id is recorded: a cloud may accept a request and reject it later,
// again and again.
func (s *Shortfalls) Of(group *groups.Group, instances []instance.Instance) (missing int32, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	current, found := s.byGroup[group.Key]
	if !found {
		return 0, ""
	}
	missing, created := group.Size, false
	for n := range instances {
		i := &instances[n]
		if i.OnDemand || !i.Known || i.ProviderID == "" || i.Down() || i.DeleteReason != "" {
			continue
		}
		missing--
		created = created || !current.known[i.ID]
	}
	if missing <= 0 || created || current.infraConfig != group.InfraConfig() {
		delete(s.byGroup, group.Key)
		return 0, ""
	}
	return missing, current.message
}

// attempted records the result of an attempt to create a managed instance. Only a lack of
// capacity is a shortfall. Other errors do not end a shortfall: they tell nothing about
// capacity.
func (s *Shortfalls) attempted(group *groups.Group, instances []instance.Instance, err error) {
	lack, ok := provider.AsCapacityError(err)
	if !ok || s == nil {
		return
	}
	known := map[string]bool{}
	for n := range instances {
		if i := &instances[n]; i.Known && !i.OnDemand {
			known[i.ID] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byGroup == nil {
		s.byGroup = map[instance.GroupKey]shortfall{}
	}
	s.byGroup[group.Key] = shortfall{infraConfig: group.InfraConfig(), message: lack.Error(), known: known}
}

// remove removes the shortfall of a group that no longer exists.
func (s *Shortfalls) remove(key instance.GroupKey) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byGroup, key)
}
