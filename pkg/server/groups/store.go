// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// Store holds the groups of one shard. It is safe for use by several
// goroutines: reads are answered from memory, also while a change is stored.
type Store struct {
	file file

	// writing serialises changes. It guards content.
	writing sync.Mutex
	// content is what the file holds.
	content content

	// mu guards what follows, which is only changed with writing held too.
	mu sync.RWMutex
	// config is the configuration in force.
	config *config.Config
	// groups are all groups, merged.
	groups map[instance.GroupKey]*Group
}

// Open reads the groups file of the shard below folder dir, which it creates
// when it is missing. A file that is damaged, or holds a group whose template,
// instance type or subnet pool is no longer configured, is an error: to go on
// without it would end instances.
//
// A static group that c does not name any more has become a dynamic one as by
// Reconfigure, if an operator changed it while it was static. Nothing is known
// of one that was not: it is gone.
func Open(ctx context.Context, c *config.Config, dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the folder of the dynamic groups: %w", err)
	}
	s := &Store{file: file{path: filepath.Join(dir, c.Shard.ID+".jsonc")}}
	var err error
	if s.content, err = s.file.read(); err != nil {
		return nil, err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
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
// or one of the storage; then nothing has changed.
func (s *Store) Upsert(key instance.GroupKey, change Change) (group *Group, changed bool, err error) {
	if err := ValidateKey(key); err != nil {
		return nil, false, err
	}
	s.writing.Lock()
	defer s.writing.Unlock()

	before, existed := s.Get(key)
	current := s.content[key.Tenant][key.Group]
	_, static := s.config.Groups[key.Tenant][key.Group]
	next := current.with(change, static)
	after, err := merge(s.config, key, next)
	if err != nil {
		return nil, false, err
	}
	if static {
		next.WhenDropped = after.asDynamic()
	}
	if err := validate(s.config, change, before, after); err != nil {
		return nil, false, err
	}
	if reflect.DeepEqual(current, next) {
		return before, false, nil
	}
	if err := s.put(key, next, after); err != nil {
		return nil, false, err
	}
	return after, !existed || before.ETag != after.ETag, nil
}

// Delete removes what operators stored of a group: a static group returns to
// its configured values, a dynamic one is gone. A group that does not exist is
// not an error. changed tells whether the group is another now.
func (s *Store) Delete(key instance.GroupKey) (changed bool, err error) {
	if err := ValidateKey(key); err != nil {
		return false, err
	}
	s.writing.Lock()
	defer s.writing.Unlock()

	if s.content[key.Tenant][key.Group] == nil {
		return false, nil
	}
	before, _ := s.Get(key)
	var after *Group
	if _, static := s.config.Groups[key.Tenant][key.Group]; static {
		if after, err = merge(s.config, key, nil); err != nil {
			return false, err
		}
	}
	if err := s.put(key, nil, after); err != nil {
		return false, err
	}
	return after == nil || before.ETag != after.ETag, nil
}

// put stores next, or its absence, and then makes after, or its absence,
// visible. Until the file is written nobody sees the change.
func (s *Store) put(key instance.GroupKey, next *stored, after *Group) error {
	content := s.content.with(key, next)
	if err := s.file.write(content); err != nil {
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
