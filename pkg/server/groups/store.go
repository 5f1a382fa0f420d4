// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
)

// Store holds the groups of one shard. It is safe for use by several
// goroutines: reads are answered from memory, also while a change is stored.
//
// It takes itself for the only one that writes. An error that wraps
// storage.ErrConflict says that it is not: another server leads the shard, this
// Store is out of date, and so is every later change that it is asked for.
type Store struct {
	// writing serialises changes. It guards object and content.
	writing sync.Mutex
	object  object
	// content is what the object holds as far as that was told to callers: a
	// change that failed is not in it.
	content content

	// mu guards what follows, which is only changed with writing held too.
	mu sync.RWMutex
	// config is the configuration in force.
	config *config.Config
	// groups are all groups, merged.
	groups map[instance.GroupKey]*Group
}

// Open reads the dynamic groups of the shard from store. No object means that
// there are none. One that is damaged, or holds a group whose template, instance
// type or subnet pool is no longer configured, is an error: to go on without it
// would end instances.
//
// A static group that c does not name any more has become a dynamic one as by
// Reconfigure, if an operator changed it while it was static. Nothing is known
// of one that was not: it is gone.
func Open(ctx context.Context, c *config.Config, store storage.Store) (*Store, error) {
	s := &Store{object: object{store: store, key: storage.GroupsKey(c.Shard.ID)}}
	s.writing.Lock()
	defer s.writing.Unlock()
	var err error
	if s.content, err = s.object.read(ctx); err != nil {
		return nil, err
	}
	if err := s.apply(ctx, c, s.content, nil); err != nil {
		return nil, err
	}
	return s, nil
}

// Config returns the configuration in force.
func (s *Store) Config() *config.Config {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.config
}

// Get returns false when there is no such group.
func (s *Store) Get(key instance.GroupKey) (*Group, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	group, found := s.groups[key]
	return group, found
}

// Keys returns the keys of all groups of all tenants, in order.
func (s *Store) Keys() []instance.GroupKey {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.SortedFunc(maps.Keys(s.groups), instance.GroupKey.Compare)
}

// Upsert makes or changes a group and returns it, after the change is stored.
// A change that is stored already is not written again. changed tells whether
// the group is another now. The error is an *InvalidError, a *RestrictedError,
// or one of the storage; then nothing has changed, except that after an error of
// the storage other than storage.ErrConflict the change may be found stored after
// a restart.
func (s *Store) Upsert(ctx context.Context, key instance.GroupKey, change Change) (group *Group, changed bool, err error) {
	if err := ValidateKey(key); err != nil {
		return nil, false, err
	}
	s.writing.Lock()
	defer s.writing.Unlock()

	before, existed := s.Get(key)
	current := s.content.get(key)
	_, static := s.config.Groups[key.Tenant][key.Group]
	next := current.with(change, static)
	after, err := merge(s.config, key, next)
	if err != nil {
		return nil, false, err
	}
	if static {
		next.WhenDropped = asDynamic(s.config, after)
	}
	if err := validate(s.config, change, before, after); err != nil {
		return nil, false, err
	}
	if s.isStored(current, next) {
		return before, false, nil
	}
	if err := s.put(ctx, key, next, after); err != nil {
		return nil, false, err
	}
	return after, !existed || before.ETag != after.ETag, nil
}

// Delete removes what operators stored of a group: a static group returns to
// its configured values, a dynamic one is gone. A group that does not exist is
// not an error. changed tells whether the group is another now. Errors are as of
// Upsert.
func (s *Store) Delete(ctx context.Context, key instance.GroupKey) (changed bool, err error) {
	if err := ValidateKey(key); err != nil {
		return false, err
	}
	s.writing.Lock()
	defer s.writing.Unlock()

	if s.isStored(s.content.get(key), nil) {
		return false, nil
	}
	before, existed := s.Get(key)
	var after *Group
	if _, static := s.config.Groups[key.Tenant][key.Group]; static {
		if after, err = merge(s.config, key, nil); err != nil {
			return false, err
		}
	}
	if err := s.put(ctx, key, nil, after); err != nil {
		return false, err
	}
	return existed && (after == nil || before.ETag != after.ETag), nil
}

// isStored tells whether next can be acknowledged without writing: it is what
// the content has, and the object surely is the content. After a write that
// failed the object may hold what the caller was not told of.
func (s *Store) isStored(current, next *stored) bool {
	return s.object.unsure == nil && reflect.DeepEqual(current, next)
}

// put stores next, or its absence, and then makes after, or its absence,
// visible. Until the object is written nobody sees the change.
func (s *Store) put(ctx context.Context, key instance.GroupKey, next *stored, after *Group) error {
	content := s.content.with(key, next)
	if err := s.object.write(ctx, content); err != nil {
		return fmt.Errorf("changing group %s: %w", key, err)
	}
	s.content = content

	s.mu.Lock()
	defer s.mu.Unlock()
	if after != nil {
		s.groups[key] = after
	} else {
		delete(s.groups, key)
	}
	return nil
}
