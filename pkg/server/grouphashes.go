// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"maps"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/cache"
)

// groupHashesInterval is the least time between two writes of the hashes. Each writes
// those of all groups, and operators may change many groups one after the other.
const groupHashesInterval = time.Second

// groupHashes writes the hashes of the groups to the cache, in the background: no
// operator waits for what the cache may lose.
type groupHashes struct {
	groups interface {
		Get(key instance.GroupKey) (*groups.Group, bool)
		Keys() []instance.GroupKey
	}
	cache *cache.DB
	// changed has an element when groups have changed.
	changed chan struct{}
	// written are the hashes in the cache, nil if they are unknown.
	written map[instance.GroupKey]cache.Hashes
}

func newGroupHashes(store *groups.Store, db *cache.DB) *groupHashes {
	h := &groupHashes{groups: store, cache: db, changed: make(chan struct{}, 1)}
	h.enqueue()
	return h
}

// enqueue makes run write the hashes. It never waits.
func (h *groupHashes) enqueue() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// run writes the hashes after they have changed, until ctx is done. The next term
// writes what it leaves.
func (h *groupHashes) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.changed:
			h.write(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(groupHashesInterval):
		}
	}
}

// write writes the hashes if they differ from those in the cache. Most changes of
// groups, as those of sizes, change none.
func (h *groupHashes) write(ctx context.Context) {
	hashes := map[instance.GroupKey]cache.Hashes{}
	for _, key := range h.groups.Keys() {
		if group, found := h.groups.Get(key); found {
			hashes[key] = cache.Hashes{RuntimeConfig: group.RuntimeConfigHash, InfraConfig: group.InfraConfigHash}
		}
	}
	if h.written != nil && maps.Equal(hashes, h.written) {
		return
	}
	h.written = nil
	if err := h.cache.PutGroups(ctx, hashes); err != nil {
		klog.FromContext(ctx).Error(err, "The hashes of the groups could not be cached")
		return
	}
	h.written = hashes
}
