// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package reconciler makes and ends instances so that every group of a shard
// has its size.
package reconciler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
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
}

// Reconciler works on groups when told that they may have changed, and does
// nothing otherwise. It keeps no state: what there is, the provider knows.
type Reconciler struct {
	groups   Groups
	provider instance.Provider
	failed   instance.FailureFunc
	queue    workqueue.TypedRateLimitingInterface[instance.GroupKey]
}

// New returns a reconciler, which begins to work with Run. It calls failed when
// the provider refuses an order.
func New(groups Groups, provider instance.Provider, failed instance.FailureFunc) *Reconciler {
	return &Reconciler{
		groups:   groups,
		provider: provider,
		failed:   failed,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[instance.GroupKey](retryAfter, retryAtMost)),
	}
}

// Enqueue tells that a group or its instances may have changed. It never waits.
func (r *Reconciler) Enqueue(key instance.GroupKey) {
	r.queue.Add(key)
}

// Run works until ctx ends and returns when nothing is under way any more. The
// provider must be synced: instances that are not known yet would be made a
// second time.
func (r *Reconciler) Run(ctx context.Context) {
	var running sync.WaitGroup
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
	if err := r.reconcile(klog.NewContext(ctx, logger), key); err != nil {
		logger.Error(err, "Group is not at its size, will retry")
		r.queue.AddRateLimited(key)
		return true
	}
	r.queue.Forget(key)
	return true
}

// reconcile brings one group to its size. It stops at the first error; the next
// attempt plans anew with what has been done by then.
func (r *Reconciler) reconcile(ctx context.Context, key instance.GroupKey) error {
	logger := klog.FromContext(ctx)
	group, found := r.groups.Get(key)
	if !found {
		group = &groups.Group{Key: key}
	}
	planned := plan(group.Size, r.provider.List(key))
	if planned.create > 0 || len(planned.remove) > 0 {
		logger.Info("Scaling group", "size", group.Size, "creating", planned.create, "deleting", len(planned.remove))
	}
	for range planned.create {
		id, err := puidv7.New(group.Kind)
		if err != nil {
			return err
		}
		spec := instance.Spec{ID: id.String(), Group: key, Type: group.Type}
		if err := r.provider.Create(ctx, spec); err != nil {
			// Nobody will ever see an instance of this id.
			r.failed(key, "", fmt.Errorf("creating an instance: %w", err))
			return fmt.Errorf("creating an instance of group %s: %w", key, err)
		}
		logger.V(2).Info("Created instance", "instance", spec.ID, "type", spec.Type.Name)
	}
	for _, id := range planned.remove {
		if err := r.provider.Delete(ctx, id); err != nil {
			r.failed(key, id, fmt.Errorf("deleting an instance: %w", err))
			return fmt.Errorf("deleting instance %s of group %s: %w", id, key, err)
		}
		logger.V(2).Info("Deleted instance", "instance", id)
	}
	return nil
}
