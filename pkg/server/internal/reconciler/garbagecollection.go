// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
)

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
