// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package reconciler creates, replaces, drains and deletes instances so that
// every group of a shard has its size, and its instances are healthy, young
// enough and up to date.
package reconciler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/stock"
	"nstance.dev/operator/pkg/server/provider"
)

const (
	// workers is how many groups are reconciled concurrently. A slow provider
	// call for one group must not delay the others.
	workers = 4
	// minBackoff and maxBackoff bound the delay after an error of a group.
	minBackoff = 200 * time.Millisecond
	maxBackoff = 30 * time.Second
	// confirmTimeout is how long a new leader waits before it replaces the instances of a
	// group that were missing from the beginning, counted from when the provider has
	// confirmed the first missing instance. If the storage was restored, an operator may have
	// a smaller size, which it sends when it connects.
	confirmTimeout = 15 * time.Second
)

// Groups provides the desired state.
type Groups interface {
	// Get returns false for a group that does not exist. Its desired size is
	// zero.
	Get(instance.GroupKey) (*groups.Group, bool)
	// Keys returns the keys of all groups.
	Keys() []instance.GroupKey
	// Deleted reports whether a group was deleted. A group that neither exists nor was
	// deleted is missing from the storage.
	Deleted(instance.GroupKey) bool
	// DeletedDrainTimeout returns the drain timeout of a deleted group, and false if the
	// group had no drain timeout of its own.
	DeletedDrainTimeout(instance.GroupKey) (time.Duration, bool)
	// DeletedBy returns the request that deleted a group, the zero value if unknown.
	DeletedBy(instance.GroupKey) audit.Request
	// Unconfirmed reports whether the settings of a group may be outdated.
	Unconfirmed(instance.GroupKey) bool
	// DeletedGroups returns the groups for which Deleted is true, and ForgetDeleted removes
	// some of them.
	DeletedGroups() []instance.GroupKey
	ForgetDeleted(context.Context, []instance.GroupKey) error
	// MarkUnconfirmed stores that groups are unconfirmed.
	MarkUnconfirmed(context.Context, []instance.GroupKey) error
	// Config returns the current configuration.
	Config() *config.Config
}

// Instances provides the actual state, and stores decisions about it.
type Instances interface {
	// List returns the instances of a group that are not deleted.
	List(instance.GroupKey) []instance.Instance
	// Get also returns deleted instances until they are purged.
	Get(id string) (instance.Instance, bool)
	// Keys returns the groups that have instances.
	Keys() []instance.GroupKey
	Add(ctx context.Context, record instance.Record) error
	SetProviderID(ctx context.Context, id, providerID string) error
	StartDrain(ctx context.Context, id string, drain instance.Drain) error
	SetDeleting(ctx context.Context, id, reason string) error
	// Remove removes the record of an instance that the provider no longer
	// lists.
	Remove(ctx context.Context, id string) error
	// Unrecorded returns the provider's instances without a record.
	Unrecorded() []instance.VM
	// Adopt creates records for the provider's unrecorded instances. Instances that were
	// deleted before are marked as returned.
	Adopt(ctx context.Context) error
	// Purge removes the instances that were deleted before a time.
	Purge(ctx context.Context, before time.Time)
}

// Specs builds the InstanceSpec for a record of a group.
type Specs interface {
	Spec(ctx context.Context, group *groups.Group, record *instance.Record, subnet string) (provider.Spec, error)
}

// Events receives the changes that operators watch, after they have been
// stored.
type Events interface {
	// Draining is called when the drain of an instance has begun.
	Draining(instance.Instance)
	// Deleting is called when an instance is about to be terminated.
	Deleting(instance.Instance)
	// Deleted is called for every deleted instance, for any reason.
	Deleted(instance.Instance)
}

// Options configure a Reconciler. All fields but Changed, Losses, Shortfalls,
// DeletionOrders, Stock and Targets are required.
type Options struct {
	Groups    Groups
	Instances Instances
	Provider  provider.Provider
	Specs     Specs
	Events    Events
	// Changed is called after a group's instances were changed. It is optional.
	Changed func(instance.GroupKey)
	// Failed is called when an instance could not be created or deleted.
	Failed provider.FailureFunc
	// CallContext returns the context for one call to the storage or the
	// provider. It is canceled when the call takes too long or this server no
	// longer leads.
	CallContext func(context.Context) (context.Context, context.CancelFunc)
	Metrics     *Metrics
	// Losses has the losses that administrators have accepted. It is optional.
	Losses AcceptedLosses
	// Shortfalls receives the groups that lack capacity. It is optional.
	Shortfalls *Shortfalls
	// DeletionOrders has the orders that operators know. It is optional.
	DeletionOrders *DeletionOrders
	// Stock receives the candidates of groups that lack capacity. It is optional.
	Stock *stock.Stock
	// Targets has the instances that are targets of load balancers. It is optional.
	Targets Targets
}

// Reconciler reconciles groups when they are enqueued or when an action falls due. All
// decisions are stored with the instances, so that every term can start with a new Reconciler
// (docs/server.md#reconciliation). In memory it keeps only its recent attempts to create
// instances, and their failures.
type Reconciler struct {
	Options
	queue         workqueue.TypedRateLimitingInterface[instance.GroupKey]
	createLimiter createLimiter
	attempts      attempts
	failures      failures
	confirmations confirmations
	losses        losses
	restarts      restarts
	terminations  terminations
	ends          ends
	requests      requests
	logged        logged
	// onDemandBackoff delays on-demand instances after a similar instance has failed.
	onDemandBackoff onDemandBackoff
	// unusedSince is when each deleted group was first seen without instances.
	unusedSince map[instance.GroupKey]time.Time
}

// New returns a reconciler, which starts to work in Run.
func New(options Options) *Reconciler {
	if options.Stock == nil {
		options.Stock = &stock.Stock{}
	}
	return &Reconciler{
		Options:     options,
		unusedSince: map[instance.GroupKey]time.Time{},
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[instance.GroupKey](minBackoff, maxBackoff)),
	}
}

// Enqueue schedules the reconciliation of a group. It does not block.
func (r *Reconciler) Enqueue(key instance.GroupKey) {
	r.queue.Add(key)
}

// Run reconciles all groups, and then those that change, until ctx is done. It
// returns after all workers have returned. Adopt must have succeeded: unknown instances
// would be created a second time.
func (r *Reconciler) Run(ctx context.Context) {
	defer r.queue.ShutDown()
	r.collectGarbage(ctx)
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

// work reconciles one group. It returns false when the queue is shut down.
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
	start := time.Now()
	groupCtx := klog.NewContext(ctx, logger)
	var done outcome
	err := r.protect(groupCtx, func() (err error) {
		done, err = r.reconcile(groupCtx, key)
		return err
	})
	if ctx.Err() != nil {
		return false
	}
	r.Metrics.reconciled(time.Since(start), err)
	if done.acted || done.reordered {
		r.changed(key)
	}
	if err != nil {
		logger.Error(err, "Failed to reconcile the group, will retry")
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

// changed reports a change of a group's instances.
func (r *Reconciler) changed(key instance.GroupKey) {
	if r.Changed != nil {
		r.Changed(key)
	}
}

var errPanic = errors.New("the shard server has panicked, its log has the details")

// protect calls do, and returns an error if it panics. A fault of one group or one instance
// must not end the process, and then the next leader, where it would happen again: no group
// of the shard would be reconciled any more. Writes of do are durable, and missing steps are
// planned again, as after a crash.
func (r *Reconciler) protect(ctx context.Context, do func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			r.Metrics.panics.Inc()
			klog.FromContext(ctx).Error(nil, "Reconciliation panicked", "panic", cause, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", errPanic, cause)
		}
	}()
	return do()
}

const (
	// adoptAttempts is the maximum number of attempts to adopt all instances
	// before operators are served.
	adoptAttempts = 5
	// disabledInterval is how often to check whether garbage collection was
	// enabled.
	disabledInterval = time.Minute
)

// Adopt gives all instances of the provider a record, with retries. Until then the lists
// of instances are incomplete. The provider must be synced. Adopt is called before Run.
func (r *Reconciler) Adopt(ctx context.Context) error {
	backoff := wait.Backoff{Duration: minBackoff, Factor: 2, Steps: adoptAttempts}
	var last error
	err := wait.ExponentialBackoffWithContext(ctx, backoff, func(ctx context.Context) (bool, error) {
		last = r.adopt(ctx)
		if last != nil {
			klog.FromContext(ctx).Error(last, "Failed to adopt all instances of the provider")
		}
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("adopt the instances of the provider: %w", cmp.Or(last, err))
	}
	for _, key := range r.Groups.Keys() {
		if group, found := r.Groups.Get(key); found {
			r.confirmations.start(group)
		}
	}
	return nil
}

// adopt creates records for the provider's unrecorded instances. An instance without a record
// shows that the storage is older than the instance, or has lost a record. The stored
// settings of its group may then be outdated too. That is stored before the record, because
// afterwards nothing shows it.
func (r *Reconciler) adopt(ctx context.Context) error {
	var keys []instance.GroupKey
	for _, vm := range r.Instances.Unrecorded() {
		if !slices.Contains(keys, vm.Group) {
			keys = append(keys, vm.Group)
		}
	}
	if len(keys) > 0 {
		err := r.withCallContext(ctx, func(ctx context.Context) error { return r.Groups.MarkUnconfirmed(ctx, keys) })
		if err != nil {
			return err
		}
	}
	return r.Instances.Adopt(ctx)
}

// collectRegularly collects garbage at the configured interval until ctx is
// done.
func (r *Reconciler) collectRegularly(ctx context.Context) {
	for {
		interval := r.Groups.Config().Shard.GarbageCollection.Interval
		select {
		case <-ctx.Done():
			return
		case <-time.After(cmp.Or(interval, disabledInterval)):
		}
		if interval > 0 {
			r.collectGarbage(ctx)
		} else {
			r.purge(ctx)
		}
	}
}

// purge removes deleted instances whose retention period is over.
func (r *Reconciler) purge(ctx context.Context) {
	r.Instances.Purge(ctx, time.Now().Add(-r.Groups.Config().Shard.GarbageCollection.DeletedRecordRetention))
}

// collectGarbage is one collection. It logs its errors: the next interval is the retry.
func (r *Reconciler) collectGarbage(ctx context.Context) {
	_ = r.protect(ctx, func() error {
		r.collect(ctx)
		return nil
	})
}

// collect adopts the provider's instances without records, purges deleted instances and
// enqueues all groups, in case a change was missed.
func (r *Reconciler) collect(ctx context.Context) {
	if err := r.adopt(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to adopt all instances of the provider")
	}
	r.purge(ctx)
	r.forgetDeletedGroups(ctx)
	r.enqueueAll(r.Groups.Keys())
	r.enqueueAll(r.Instances.Keys())
}

func (r *Reconciler) enqueueAll(keys []instance.GroupKey) {
	for _, key := range keys {
		r.changed(key) // reports adopted instances, even if the group needs no change
		r.Enqueue(key)
	}
}

// forgetDeletedGroups removes the marks of deleted groups once they have had no instances for
// as long as deleted instances are remembered: the creation of an instance may have been in
// progress when its group was deleted.
func (r *Reconciler) forgetDeletedGroups(ctx context.Context) {
	retention := r.Groups.Config().Shard.GarbageCollection.DeletedRecordRetention
	used := r.Instances.Keys()
	now, before := time.Now(), r.unusedSince
	r.unusedSince = map[instance.GroupKey]time.Time{}
	var forget []instance.GroupKey
	for _, key := range r.Groups.DeletedGroups() {
		if _, found := slices.BinarySearchFunc(used, key, instance.GroupKey.Compare); found {
			continue
		}
		since, known := before[key]
		if !known {
			since = now
		}
		r.unusedSince[key] = since
		if known && now.Sub(since) >= retention {
			forget = append(forget, key)
		}
	}
	if len(forget) == 0 {
		return
	}
	err := r.withCallContext(ctx, func(ctx context.Context) error { return r.Groups.ForgetDeleted(ctx, forget) })
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to forget deleted groups, will retry")
	}
}
