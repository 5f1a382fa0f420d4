// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package reconciler makes, replaces, drains and ends instances so that every
// group of a shard has its size, and its instances are well, young enough and of
// the present configuration.
package reconciler

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

const (
	// workers is how many groups are worked on at a time: a slow provider call
	// for one group shall not hold up the others.
	workers = 4
	// retryAfter and retryAtMost bound the wait after an error of a group.
	retryAfter  = 200 * time.Millisecond
	retryAtMost = 30 * time.Second
)

// Groups tells what is wanted.
type Groups interface {
	// Get returns false for a group that is no more: its size is zero.
	Get(instance.GroupKey) (*groups.Group, bool)
	// Keys returns all groups that there are.
	Keys() []instance.GroupKey
	// Config returns the configuration in force.
	Config() *config.Config
}

// Instances tells what there is, and keeps what is decided about it.
type Instances interface {
	// List returns the instances of a group that are not gone.
	List(instance.GroupKey) []instance.Instance
	// Get returns also those that are gone, as long as they are remembered.
	Get(id string) (instance.Instance, bool)
	// Keys returns the groups that have instances.
	Keys() []instance.GroupKey
	Add(ctx context.Context, record instance.Record) error
	SetProviderID(ctx context.Context, id, providerID string) error
	StartDrain(ctx context.Context, id string, drain instance.Drain) error
	SetDeleting(ctx context.Context, id, reason string) error
	// Remove is for an instance that the provider does not know any more.
	Remove(ctx context.Context, id string) error
	// Adopt makes records for instances of the provider that have none, and
	// returns those that had one and were to be gone.
	Adopt(ctx context.Context) (returned []instance.VM, err error)
	// Purge forgets instances that were gone before a time.
	Purge(ctx context.Context, before time.Time)
}

// Specs says what to order for a record of a group.
type Specs interface {
	Spec(ctx context.Context, group *groups.Group, record *instance.Record, subnet string) (instance.Spec, error)
}

// Events is told what operators watch, after it has been stored.
type Events interface {
	// Draining is told of an instance whose drain has begun.
	Draining(instance.Instance)
	// Deleting is told of an instance that is about to be ended.
	Deleting(instance.Instance)
	// Deleted is told of every instance that is gone, whatever the reason.
	Deleted(instance.Instance)
}

// Options are what a Reconciler is made of. All but one are mandatory.
type Options struct {
	Groups    Groups
	Instances Instances
	Provider  instance.Provider
	Specs     Specs
	Events    Events
	// Changed is told after something was done about a group's instances. It is
	// optional.
	Changed func(instance.GroupKey)
	// Failed is told when an instance could not be made or ended.
	Failed instance.FailureFunc
	// Bound returns the context for one call to the storage or the provider. It
	// ends when the call takes too long, or this server may not act any more.
	Bound   func(context.Context) (context.Context, context.CancelFunc)
	Metrics *Metrics
}

// Reconciler works on groups when told that they may have changed or when
// something falls due, and does nothing otherwise. What was decided the instances
// know, and so it is made anew for every term of a leader (server document). All
// that it remembers is what it has just tried.
type Reconciler struct {
	Options
	queue    workqueue.TypedRateLimitingInterface[instance.GroupKey]
	pace     pace
	attempts attempts
}

// New returns a reconciler, which begins to work with Run.
func New(options Options) *Reconciler {
	return &Reconciler{
		Options: options,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[instance.GroupKey](retryAfter, retryAtMost)),
	}
}

// Enqueue tells that a group or its instances may have changed. It never waits.
func (r *Reconciler) Enqueue(key instance.GroupKey) {
	r.queue.Add(key)
}

// Run works on all groups, and then on those that change, until ctx ends. It
// returns when nothing is under way any more. It begins when the provider is
// synced and its instances have records: those that are not known yet would be
// made a second time.
func (r *Reconciler) Run(ctx context.Context) {
	defer r.queue.ShutDown()
	select {
	case <-ctx.Done():
		return
	case <-r.Provider.Synced():
	}
	r.adoptFirst(ctx)
	var running sync.WaitGroup
	running.Go(func() { r.collectRegularly(ctx) })
	for range workers {
		running.Go(func() {
			for r.work(ctx) {
			}
		})
	}
	<-ctx.Done()
	r.queue.ShutDown()
	running.Wait()
}

// work reconciles one group. It returns false when there will be no more.
func (r *Reconciler) work(ctx context.Context) bool {
	key, shutdown := r.queue.Get()
	if shutdown {
		return false
	}
	defer r.queue.Done(key)
	if ctx.Err() != nil {
		return false
	}
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "tenant", key.Tenant, "group", key.Group)
	begun := time.Now()
	done, err := r.reconcile(klog.NewContext(ctx, logger), key)
	if ctx.Err() != nil {
		return false
	}
	r.Metrics.reconciled(time.Since(begun), err)
	if done.acted {
		r.changed(key)
	}
	if err != nil {
		logger.Error(err, "Group is not as wanted, will retry")
		r.queue.AddRateLimited(key)
	} else {
		r.queue.Forget(key)
	}
	if done.more {
		r.queue.Add(key)
	}
	if done.after > 0 {
		r.queue.AddAfter(key, done.after)
	}
	return true
}

// changed tells that something was done about a group's instances.
func (r *Reconciler) changed(key instance.GroupKey) {
	if r.Changed != nil {
		r.Changed(key)
	}
}
