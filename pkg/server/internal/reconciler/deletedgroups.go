// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
)

// forgetDeletedGroups forgets that groups were deleted once they have had no instances
// for as long as deleted instances are remembered: the creation of an instance may have
// been in progress when its group was deleted.
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
