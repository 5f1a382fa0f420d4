// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package loadbalancers registers instances as targets of load balancers, and deregisters
// them before they are terminated (docs/server.md#load-balancers).
package loadbalancers

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provision"
)

const (
	// workers is how many load balancers are synchronized concurrently.
	workers = 4
	// gatherDelay is how long a change waits for others, which share its calls.
	gatherDelay = 300 * time.Millisecond
	// confirmInterval is the time from a call to the next list, busyInterval the time between
	// two lists while a target is being registered or deregistered, and idleInterval the time
	// between two lists while nothing is in progress.
	confirmInterval = time.Second
	busyInterval    = 5 * time.Second
	idleInterval    = time.Minute
)

// Instances has the instances with a record. Get also returns deleted instances for a while.
type Instances interface {
	Keys() []instance.GroupKey
	List(key instance.GroupKey) []instance.Instance
	Get(id string) (instance.Instance, bool)
}

// Groups returns the load balancers of the instances of a group.
type Groups interface {
	Get(key instance.GroupKey) (*groups.Group, bool)
	// Deleted reports whether a group was deleted, and Unconfirmed whether its settings may
	// be outdated.
	Deleted(key instance.GroupKey) bool
	Unconfirmed(key instance.GroupKey) bool
	Config() *config.Config
}

// Options configure a Syncer. All fields but Agents are mandatory.
type Options struct {
	Balancers provider.LoadBalancers
	// VM returns an instance as the provider reports it.
	VM        func(id string) (instance.VM, bool)
	Instances Instances
	Groups    Groups
	// Agents is true if the instances run agents: an instance is registered when its agent
	// has reported. Without agents the provider's report counts.
	Agents bool
	// CallContext returns the context of one call, so that only the leader makes it.
	CallContext provider.CallContextFunc
	// Changed is called after Waits has changed for instances of a group.
	Changed func(instance.GroupKey)
	// Failed is called when an instance could not be registered or deregistered, and
	// FailedList when the targets of a load balancer could not be listed.
	Failed     provider.FailureFunc
	FailedList func(error)
	Metrics    *Metrics
}

// Syncer makes the targets of load balancers equal to the wanted targets, during one term. It
// has no state of earlier terms: it reads the targets from the provider. It is safe for
// concurrent use.
type Syncer struct {
	Options
	// queue has the names of the parts to synchronize. No two workers work on the same part.
	queue workqueue.TypedDelayingInterface[string]

	// mu guards the fields below, and the fields of the parts. It is never locked during a
	// call.
	mu    sync.Mutex
	parts map[string]*part
	// configured is the configuration whose entries the parts have.
	configured *config.Config
}

// part is the state of one part of the load balancers, such as one target group: entries of
// the configuration may list several parts, and share some.
type part struct {
	// balancer is passed to the provider's calls: an entry that lists this part only.
	balancer provider.LoadBalancer
	// entries are the keys of the entries that list it, in order. If no entry lists it any
	// more, its targets are deregistered.
	entries []string
	// label is its name in metrics and messages while no entry lists it.
	label string
	// listed is true once the targets were listed in this term.
	listed bool
	// due is when to list them again, and failures how often listing has failed in a row.
	due      time.Time
	failures int
	// targets are the instances that are or may be targets, by id.
	targets map[string]*target
}

// dropped reports whether no entry lists the part any more.
func (p *part) dropped() bool { return len(p.entries) == 0 }

// labels are the values of the metric label for the part.
func (p *part) labels() []string {
	if p.dropped() {
		return []string{p.label}
	}
	return p.entries
}

// wantedBy returns the entries of the part that are among keys.
func (p *part) wantedBy(keys map[string]bool) []string {
	var entries []string
	for _, key := range p.entries {
		if keys[key] {
			entries = append(entries, key)
		}
	}
	return entries
}

// New returns a Syncer, which starts to work in Run.
func New(o Options) *Syncer {
	s := &Syncer{
		Options: o,
		queue:   workqueue.NewTypedDelayingQueue[string](),
		parts:   map[string]*part{},
	}
	s.update()
	return s
}

// Run synchronizes the load balancers until ctx is done. It returns when no call is in
// progress.
func (s *Syncer) Run(ctx context.Context) {
	s.Enqueue()
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for s.work(ctx) {
			}
		})
	}
	<-ctx.Done()
	s.queue.ShutDown()
	running.Wait()
}

// Enqueue synchronizes all load balancers soon, because groups, instances or the
// configuration have changed. It does not block.
func (s *Syncer) Enqueue() {
	for _, name := range s.update() {
		s.queue.AddAfter(name, gatherDelay)
	}
}

// update adds the parts that are new in the configuration, and marks the parts that it no
// longer has. It returns the names of all parts.
func (s *Syncer) update() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.configured = s.Groups.Config()
	configured := s.configured.LoadBalancers
	before := map[string][]string{}
	for name, p := range s.parts {
		before[name], p.entries = p.entries, nil
	}
	for _, key := range slices.Sorted(maps.Keys(configured)) {
		for name, settings := range configured[key].Settings.Parts() {
			p := s.parts[name]
			if p == nil {
				p = &part{targets: map[string]*target{}}
				s.parts[name] = p
			}
			if p.dropped() {
				// No entry has a key with a space, so this label is unique.
				p.balancer, p.label = provider.LoadBalancer{Key: key, Settings: settings}, key+" (before)"
			}
			p.entries = append(p.entries, key)
		}
	}
	for name, p := range s.parts {
		if p.dropped() != (len(before[name]) == 0) {
			p.due = time.Time{}
		}
	}
	return slices.Collect(maps.Keys(s.parts))
}

// isCurrent reports whether the parts come from the configuration in force.
func (s *Syncer) isCurrent() bool {
	configured := s.Groups.Config()
	s.mu.Lock()
	defer s.mu.Unlock()
	return configured == s.configured
}

// Waits reports whether an instance that is being deleted is, or may be, a target of a load
// balancer: its deregistration delay is not over, or the targets are not known. Then it must
// not be terminated before the deadline of its drain.
func (s *Syncer) Waits(i *instance.Instance) bool {
	if s.neverReported(i) {
		return false
	}
	if !s.isCurrent() {
		s.update()
	}
	keys, _ := s.wantedBalancers(i)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.parts {
		t, known := p.targets[i.ID]
		switch {
		case !p.listed, known && t.possible:
			return true
		case !known && len(p.wantedBy(keys)) > 0:
			// Its deregistration has not begun.
			return true
		}
	}
	return false
}

// work synchronizes one part. It returns false when the queue is shut down.
func (s *Syncer) work(ctx context.Context) bool {
	name, shutdown := s.queue.Get()
	if shutdown {
		return false
	}
	defer s.queue.Done(name)
	if ctx.Err() != nil {
		return false
	}
	if wait := s.sync(ctx, name); wait > 0 {
		s.queue.AddAfter(name, wait)
	}
	return true
}

// intent is the change of an instance as a target of one load balancer.
type intent int

const (
	// keep leaves a target as it is.
	keep intent = iota
	// register makes the instance a target.
	register
	// deregister removes it.
	deregister
)

// intentOf returns the change of an instance at a load balancer. wanted is true if the
// configuration wants it there, and certain is false if that may be outdated.
//
// An instance is registered on a good report only. After that it stays a target as long as
// it exists: a load balancer has health checks of its own, and an instance that is really
// lost is drained. An instance that is missing may be missing by mistake.
func (s *Syncer) intentOf(i *instance.Instance, wanted, certain bool) intent {
	switch {
	case !i.DeletedAt.IsZero() || i.BeingDeleted():
		return deregister
	case !wanted && certain:
		return deregister
	case wanted && s.isGood(i):
		return register
	default:
		return keep
	}
}

// isGood reports whether an instance has reported that it is healthy since this server
// leads: its agent, or else its provider.
func (s *Syncer) isGood(i *instance.Instance) bool {
	if !i.Known || i.State != instance.Running || i.Agent.Notice != nil {
		return false
	}
	return !s.Agents || i.Agent.State == instance.AgentReporting
}

// neverReported reports whether an instance certainly was never registered, because it has
// never given a good report.
func (s *Syncer) neverReported(i *instance.Instance) bool {
	if s.Agents {
		return i.Registration == nil && !i.Adopted
	}
	return i.ProviderID == "" && !i.Found
}

// wantedBalancers returns the load balancers that an instance is to be registered with.
// certain is false if that may be outdated.
func (s *Syncer) wantedBalancers(i *instance.Instance) (keys map[string]bool, certain bool) {
	key := i.Key()
	group, found := s.Groups.Get(key)
	if !found {
		// An on-demand instance outlives its group.
		return nil, s.Groups.Deleted(key) && !i.OnDemand
	}
	effective, err := provision.Effective(s.Groups.Config(), group, &i.Record)
	if err != nil {
		// The template of an on-demand instance may not be configured any more.
		return nil, false
	}
	keys = map[string]bool{}
	for _, key := range effective.LoadBalancers {
		keys[key] = true
	}
	return keys, !s.Groups.Unconfirmed(key) && !i.Adopted
}
