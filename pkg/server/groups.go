// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"
	"maps"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/cache"
	"nstance.dev/operator/pkg/server/storage"
)

// openGroups opens the groups with the configuration in the storage or, if it is invalid,
// with the configuration that was in force last. The first reload reports the mistakes.
func (t *term) openGroups(ctx context.Context) error {
	store := exclusiveStore{t.storage, t.stop}
	accepted, err := t.shared.readAccepted(ctx, store)
	if err != nil {
		return err
	}
	next, err := t.newestConfig(ctx)
	if err == nil {
		t.groups, err = groups.Open(ctx, accepted, next, store)
	}
	var rejected error
	if isInvalid(err) || errors.Is(err, storage.ErrNotFound) {
		klog.FromContext(ctx).Error(err, "The configuration was rejected, the previous one stays in force")
		rejected = err
		t.groups, err = groups.Open(ctx, accepted, t.previousConfig(accepted), store)
	}
	if err != nil {
		return err
	}
	t.shared.setRejected(rejected)
	t.shared.inForce.Store(t.groups.Config())
	return nil
}

// previousConfig returns the configuration that was in force last: the accepted configuration
// unless it needs a restart, because another server may have put it in force.
func (t *term) previousConfig(accepted *config.Config) *config.Config {
	if accepted != nil && len(t.shared.config.CheckReplacement(accepted)) == 0 {
		return accepted
	}
	return t.shared.inForce.Load()
}

// newestConfig returns the configuration in the storage. The error wraps a
// *config.InvalidError if it cannot be put in force.
func (t *term) newestConfig(ctx context.Context) (*config.Config, error) {
	next, err := t.shared.readConfig(ctx)
	if err != nil {
		return nil, err
	}
	if problems := t.shared.config.CheckReplacement(next); len(problems) > 0 {
		return nil, &config.InvalidError{Mistakes: problems.ToAggregate()}
	}
	return next, nil
}

// exclusiveStore is a storage for objects that only the leader of the shard
// writes. A conflict means that another writer did: the term's state is outdated
// then, and the term stops.
type exclusiveStore struct {
	storage.Store
	stop context.CancelCauseFunc
}

func (s exclusiveStore) Create(ctx context.Context, key string, data []byte) (string, error) {
	etag, err := s.Store.Create(ctx, key, data)
	s.stopOnConflict(err)
	return etag, err
}

func (s exclusiveStore) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	etag, err := s.Store.Replace(ctx, key, data, etag)
	s.stopOnConflict(err)
	return etag, err
}

func (s exclusiveStore) stopOnConflict(err error) {
	if errors.Is(err, storage.ErrConflict) {
		s.stop(err)
	}
}

// groupHashesInterval is the least time between two writes of the hashes. Each looks at the
// hashes of all groups, and operators may change many groups one after the other.
const groupHashesInterval = time.Second

// groupHashes writes the hashes of the groups to the cache, in the background: no operator
// waits for a write that the cache may lose.
type groupHashes struct {
	groups interface {
		Get(key instance.GroupKey) (*groups.Group, bool)
		Keys() []instance.GroupKey
	}
	cache interface {
		PutGroups(ctx context.Context, before, groups map[instance.GroupKey]cache.Hashes) error
	}
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

// run writes the hashes after they have changed, until ctx is done. The next term writes
// changes that are left.
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

// write writes the hashes if they differ from the hashes in the cache. Most changes of
// groups, such as changes of sizes, change no hash.
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
	before := h.written
	h.written = nil
	if err := h.cache.PutGroups(ctx, before, hashes); err != nil {
		klog.FromContext(ctx).Error(err, "The hashes of the groups could not be cached")
		return
	}
	h.written = hashes
}
