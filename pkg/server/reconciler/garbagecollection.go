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
	// adoptAttempts is the maximum number of attempts to adopt all instances
	// before the first group is reconciled.
	adoptAttempts = 5
	// disabledInterval is how often to check whether garbage collection was
	// enabled.
	disabledInterval = time.Minute
)

// adoptFirst adopts instances, with retries. It finally gives up, so that one
// instance with damaged metadata does not block all groups.
func (r *Reconciler) adoptFirst(ctx context.Context) {
	backoff := wait.Backoff{Duration: minBackoff, Factor: 2, Steps: adoptAttempts}
	err := wait.ExponentialBackoffWithContext(ctx, backoff, func(ctx context.Context) (bool, error) {
		return r.collectGarbage(ctx) == nil, nil
	})
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Continuing although some instances could not be adopted")
	}
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
			_ = r.collectGarbage(ctx) // logs its errors; the next interval is the retry
		} else {
			r.purge(ctx)
		}
	}
}

// purge removes deleted instances whose retention period is over.
func (r *Reconciler) purge(ctx context.Context) {
	r.Instances.Purge(ctx, time.Now().Add(-r.Groups.Config().Shard.GarbageCollection.DeletedRecordRetention))
}

// collectGarbage adopts the provider's instances without records, deletes those
// that have reappeared, purges deleted instances and enqueues all groups, in
// case a change was missed.
func (r *Reconciler) collectGarbage(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	returned, err := r.Instances.Adopt(ctx)
	if err != nil {
		logger.Error(err, "Failed to adopt all instances of the provider")
	}
	for _, vm := range returned {
		logger.Info("Deleting an instance that has reappeared after its deletion", "instance", vm.ID, "tenant", vm.Group.Tenant, "group", vm.Group.Group)
		if err := r.call(ctx, callDelete, func(ctx context.Context) error { return r.Provider.Delete(ctx, vm.ID) }); err != nil {
			err = fmt.Errorf("delete instance %s, which has reappeared: %w", vm.ID, err)
			logger.Error(err, "Failed to delete an instance, will retry")
			r.Failed(vm.Group, vm.ID, err)
		}
	}
	r.purge(ctx)
	r.enqueueAll(r.Groups.Keys())
	r.enqueueAll(r.Instances.Keys())
	return err
}

func (r *Reconciler) enqueueAll(keys []instance.GroupKey) {
	for _, key := range keys {
		r.changed(key) // reports adopted instances, even if the group needs no change
		r.Enqueue(key)
	}
}
