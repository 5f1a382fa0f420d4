// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package loadbalancers registers instances as targets of load balancers, and deregisters
// them before they are terminated (docs/server.md#load-balancers).
package loadbalancers

import (
	"context"
	"reflect"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

const (
	// workers is how many load balancers are synchronized concurrently.
	workers = 4
	// gatherDelay is how long a change waits for others, which share its calls.
	gatherDelay = 300 * time.Millisecond
	// confirmInterval is the time from a call to the next list, busyInterval that between
	// two lists while a target is being registered or deregistered, and idleInterval that
	// while nothing is in progress.
	confirmInterval = time.Second
	busyInterval    = 5 * time.Second
	idleInterval    = time.Minute
)

// Instances has the instances with a record. Get also returns deleted ones for a while.
type Instances interface {
	Keys() []instance.GroupKey
	List(key instance.GroupKey) []instance.Instance
	Get(id string) (instance.Instance, bool)
}

// Groups has which load balancers the instances of a group are registered with.
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
	// Agents is true if the instances run agents: one is registered when its agent has
	// reported. Without agents the provider's report counts.
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

// Syncer makes the targets of load balancers equal to what is wanted, during one term. It
// knows nothing of earlier terms: the targets are read from the provider. It is safe for
// concurrent use.
type Syncer struct {
	Options
	// queue has the names of the balancers to synchronize. No two workers work on the same.
	queue workqueue.TypedDelayingInterface[string]

	// mu guards the fields below, and those of the balancers. It is never locked during a
	// call.
	mu        sync.Mutex
	balancers map[string]*balancer
}

// balancer is what is known of one load balancer.
type balancer struct {
	provider.LoadBalancer
	// working is locked while it is synchronized: its lists and calls follow each other.
	working sync.Mutex
	// name is its key, or a longer one if the configuration does not have these settings
	// any more.
	name string
	// dropped is true if the configuration does not have it any more. Its targets are
	// deregistered.
	dropped bool
	// listed is true once the targets were listed in this term.
	listed bool
	// due is when to list them again, and failures how often that has failed in a row.
	due      time.Time
	failures int
	// targets are the instances that are or may be targets, by id.
	targets map[string]*target
}

// New returns a Syncer, which starts to work in Run.
func New(o Options) *Syncer {
	s := &Syncer{
		Options:   o,
		queue:     workqueue.NewTypedDelayingQueue[string](),
		balancers: map[string]*balancer{},
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

// update adds the load balancers that are new in the configuration, and marks those that it
// does not have any more. It returns the names of all.
func (s *Syncer) update() []string {
	configured := s.Groups.Config().LoadBalancers
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, b := range s.balancers {
		if current, found := configured[b.Key]; b.dropped || found && reflect.DeepEqual(current, b.LoadBalancer) {
			continue
		}
		delete(s.balancers, key)
		b.dropped, b.due = true, time.Time{}
		// A key of the configuration has no space.
		for b.name = key + " (before)"; s.balancers[b.name] != nil; b.name += " (before)" {
		}
		s.balancers[b.name] = b
	}
	for key, current := range configured {
		if s.balancers[key] == nil {
			s.balancers[key] = &balancer{LoadBalancer: current, name: key, targets: map[string]*target{}}
		}
	}
	names := make([]string, 0, len(s.balancers))
	for name := range s.balancers {
		names = append(names, name)
	}
	return names
}

// Waits reports whether an instance that is being deleted is a target of a load balancer,
// or may be one: its deregistration delay is not over, or the targets are not known. Then
// it must not be terminated before the deadline of its drain.
func (s *Syncer) Waits(i *instance.Instance) bool {
	if s.neverReported(i) {
		return false
	}
	keys, _ := s.wantedBalancers(i)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.balancers {
		t, known := b.targets[i.ID]
		switch {
		case !b.listed, known && t.possible:
			return true
		case !known && keys[b.name]:
			// Its deregistration has not begun.
			return true
		}
	}
	return false
}

// work synchronizes one load balancer. It returns false when the queue is shut down.
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
