// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
)

const (
	// adoptions is how often it is tried to adopt all instances before groups
	// are worked on.
	adoptions = 5
	// idle is how often to see whether garbage collection has been configured.
	idle = time.Minute
)

// adoptFirst adopts instances, and tries again when that fails. It gives up in
// the end, so that one instance that cannot be adopted, for its metadata are
// damaged, does not stand in the way of all others.
func (r *Reconciler) adoptFirst(ctx context.Context) {
	backoff := wait.Backoff{Duration: retryAfter, Factor: 2, Steps: adoptions}
	err := wait.ExponentialBackoffWithContext(ctx, backoff, func(ctx context.Context) (bool, error) {
		return r.collect(ctx) == nil, nil
	})
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Going on with instances that could not be adopted")
	}
}

// collectRegularly collects until ctx ends, as often as is configured.
func (r *Reconciler) collectRegularly(ctx context.Context) {
	for {
		interval := r.Groups.Config().Shard.GarbageCollection.Interval
		select {
		case <-ctx.Done():
			return
		case <-time.After(cmp.Or(interval, idle)):
		}
		if interval > 0 {
			_ = r.collect(ctx) // is logged, and tried again next time
		} else {
			r.purge(ctx)
		}
	}
}

// purge forgets those that nobody asks about any more.
func (r *Reconciler) purge(ctx context.Context) {
	r.Instances.Purge(ctx, time.Now().Add(-r.Groups.Config().Shard.GarbageCollection.DeletedRecordRetention))
}

// collect compares the instances of the provider with those that are known,
// forgets those that nobody asks about any more, and has all groups worked on:
// should a change have gone unnoticed, it is made up for.
func (r *Reconciler) collect(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	returned, err := r.Instances.Adopt(ctx)
	if err != nil {
		logger.Error(err, "Not all instances of the provider could be adopted")
	}
	for _, vm := range returned {
		logger.Info("Deleting an instance that was gone and has come back", "instance", vm.ID, "tenant", vm.Group.Tenant, "group", vm.Group.Group)
		if err := r.call(ctx, callDelete, func(ctx context.Context) error { return r.Provider.Delete(ctx, vm.ID) }); err != nil {
			err = fmt.Errorf("deleting instance %s, which has come back: %w", vm.ID, err)
			logger.Error(err, "Will retry")
			r.Failed(vm.Group, vm.ID, err)
		}
	}
	r.purge(ctx)
	r.lookAt(r.Groups.Keys())
	r.lookAt(r.Instances.Keys())
	return err
}

func (r *Reconciler) lookAt(keys []instance.GroupKey) {
	for _, key := range keys {
		r.changed(key) // what was adopted shows, also when there is nothing to do
		r.Enqueue(key)
	}
}
