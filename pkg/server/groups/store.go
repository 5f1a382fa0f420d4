// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// Store holds the groups of one shard. It is safe for use by several
// goroutines: reads are answered from memory, also while a change is stored.
type Store struct {
	config *config.Config
	file   file

	// writing serialises changes. It guards content.
	writing sync.Mutex
	// content is what the file holds.
	content map[string]map[string]*stored

	// mu guards groups.
	mu sync.RWMutex
	// groups are all groups, merged. It is only changed with writing held.
	groups map[instance.GroupKey]*Group
}

// Open reads the groups file of the shard below folder dir, which it creates
// when it is missing. A file that is damaged, or holds a group whose template,
// instance type or subnet pool is no longer configured, is an error: to go on
// without it would end instances. What operators stored of a static group goes
// with the group when the configuration drops it.
func Open(ctx context.Context, c *config.Config, dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the folder of the dynamic groups: %w", err)
	}
	s := &Store{
		config: c,
		file:   file{path: filepath.Join(dir, c.Shard.ID+".jsonc")},
		groups: map[instance.GroupKey]*Group{},
	}
	var err error
	if s.content, err = s.file.read(); err != nil {
		return nil, err
	}
	for tenant, groups := range c.Groups {
		for name := range groups {
			key := instance.GroupKey{Tenant: tenant, Group: name}
			if s.groups[key], err = s.merge(key, nil); err != nil {
				return nil, err
			}
		}
	}
	if err := s.addStored(klog.FromContext(ctx)); err != nil {
		return nil, fmt.Errorf("dynamic groups in %s:\n%w", s.file.path, err)
	}
	return s, nil
}

// addStored merges the content of the file into the groups, and reports all
// that is wrong with it.
func (s *Store) addStored(logger klog.Logger) error {
	var problems []error
	for _, tenant := range slices.Sorted(maps.Keys(s.content)) {
		for _, name := range slices.Sorted(maps.Keys(s.content[tenant])) {
			key := instance.GroupKey{Tenant: tenant, Group: name}
			override := s.content[tenant][name]
			if _, static := s.groups[key]; !static && override.onlyOverrides() {
				logger.Info("Forgot the changes to a static group that is configured no more", "tenant", tenant, "group", name)
				delete(s.content[tenant], name)
				continue
			}
			group, err := s.merge(key, override)
			if err != nil {
				return err
			}
			for _, problem := range validateStored(s.config, override, group) {
				problems = append(problems, problem)
			}
			s.groups[key] = group
		}
	}
	return errors.Join(problems...)
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
	after, err := s.merge(key, next)
	if err != nil {
		return nil, false, err
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
		if after, err = s.merge(key, nil); err != nil {
			return false, err
		}
	}
	if err := s.put(key, nil, after); err != nil {
		return false, err
	}
	return after == nil || before.ETag != after.ETag, nil
}

// merge makes a group of what is configured and what is stored under key.
func (s *Store) merge(key instance.GroupKey, override *stored) (*Group, error) {
	var configured *config.Group
	if group, found := s.config.Groups[key.Tenant][key.Group]; found {
		configured = &group
	}
	return merge(key, s.config.Templates, configured, override)
}

// put stores next, or its absence, and then makes after, or its absence,
// visible. Until the file is written nobody sees the change.
func (s *Store) put(key instance.GroupKey, next *stored, after *Group) error {
	content := maps.Clone(s.content)
	tenant := maps.Clone(content[key.Tenant])
	if next != nil {
		if tenant == nil {
			tenant = map[string]*stored{}
		}
		tenant[key.Group] = next
	} else {
		delete(tenant, key.Group)
	}
	if len(tenant) > 0 {
		content[key.Tenant] = tenant
	} else {
		delete(content, key.Tenant)
	}
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
