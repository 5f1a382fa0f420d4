// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"sync"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/cache"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

// groupHashes writes the hashes of groups to the cache. Changes of operators are
// written in the background and several at a time: the cache may lose them, so
// no operator waits for it.
type groupHashes struct {
	groups interface {
		Get(key instance.GroupKey) (*groups.Group, bool)
		Keys() []instance.GroupKey
	}
	cache *cache.DB

	// mu guards changed.
	mu sync.Mutex
	// changed are the groups that must be written.
	changed map[instance.GroupKey]struct{}
	// wake has an element when there is something in changed.
	wake chan struct{}

	// writeMu serializes writes, so that no older hashes replace newer ones.
	writeMu sync.Mutex
	// written are the hashes in the cache.
	written map[instance.GroupKey]cache.Hashes
}

func newGroupHashes(store *groups.Store, db *cache.DB) *groupHashes {
	return &groupHashes{
		groups:  store,
		cache:   db,
		changed: map[instance.GroupKey]struct{}{},
		wake:    make(chan struct{}, 1),
		written: map[instance.GroupKey]cache.Hashes{},
	}
}

// writeAll writes the hashes of all groups.
func (h *groupHashes) writeAll(ctx context.Context) {
	h.writeMu.Lock()
	defer h.writeMu.Unlock()
	all := map[instance.GroupKey]cache.Hashes{}
	for _, key := range h.groups.Keys() {
		if hashes := h.of(key); hashes != nil {
			all[key] = *hashes
		}
	}
	if err := h.cache.PutGroups(ctx, all); err != nil {
		klog.FromContext(ctx).Error(err, "The hashes of the groups could not be cached")
		return
	}
	h.written = all
}

// enqueue makes run write the hashes of a group. It never waits for the cache.
func (h *groupHashes) enqueue(key instance.GroupKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed[key] = struct{}{}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// run writes the hashes of enqueued groups until ctx is done. The next term
// writes those that are left.
func (h *groupHashes) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
			h.writeChanged(ctx)
		}
	}
}

func (h *groupHashes) writeChanged(ctx context.Context) {
	h.writeMu.Lock()
	defer h.writeMu.Unlock()
	updates := h.updates(h.takeChanged())
	if len(updates) == 0 {
		return
	}
	if err := h.cache.UpdateGroups(ctx, updates); err != nil {
		klog.FromContext(ctx).Error(err, "The hashes of groups could not be cached")
		return
	}
	for key, hashes := range updates {
		if hashes != nil {
			h.written[key] = *hashes
		} else {
			delete(h.written, key)
		}
	}
}

// takeChanged returns the enqueued groups, which are no longer enqueued then.
func (h *groupHashes) takeChanged() map[instance.GroupKey]struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed := h.changed
	h.changed = map[instance.GroupKey]struct{}{}
	return changed
}

// updates returns the hashes of changed groups that differ from those in the
// cache, nil for a group that does not exist.
func (h *groupHashes) updates(changed map[instance.GroupKey]struct{}) map[instance.GroupKey]*cache.Hashes {
	updates := map[instance.GroupKey]*cache.Hashes{}
	for key := range changed {
		hashes := h.of(key)
		if written, found := h.written[key]; hashes == nil || !found || *hashes != written {
			updates[key] = hashes
		}
	}
	return updates
}

// of returns the hashes of a group, nil if there is no such group.
func (h *groupHashes) of(key instance.GroupKey) *cache.Hashes {
	group, found := h.groups.Get(key)
	if !found {
		return nil
	}
	return &cache.Hashes{RuntimeConfig: group.RuntimeConfigHash, InfraConfig: group.InfraConfigHash}
}
