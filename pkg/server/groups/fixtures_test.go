// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

// The groups of the tests: main and plain are static, the others are dynamic.
var (
	main    = instance.GroupKey{Tenant: "default", Group: "main"}
	plain   = instance.GroupKey{Tenant: "default", Group: "plain"}
	dynamic = instance.GroupKey{Tenant: "default", Group: "dynamic"}
)

// objectKey is the key of the dynamic groups of the tests.
const objectKey = "groups/us-west-2a.jsonc"

// newConfig returns the configuration of a shard with the static groups main
// and plain. Dynamic groups may use the pools open and other, but not closed.
func newConfig() *config.Config {
	return newConfigWith(map[string]config.Group{
		"main": {
			Template: "worker", Size: new(int32(3)), InstanceType: "c7i.large", SubnetPool: "closed",
			Vars:         map[string]string{"role": "main", "own": "yes"},
			Args:         map[string]any{"labels": map[string]any{"own": "yes"}},
			DrainTimeout: new(time.Minute),
		},
		"plain": {Template: "worker"},
	})
}

// newConfigWith returns the configuration with other static groups of the
// default tenant.
func newConfigWith(static map[string]config.Group) *config.Config {
	types := map[string]provider.InstanceType{}
	for _, name := range []string{"c7i.large", "m7i.large", "m7i.xlarge", "r7i.large", "t3.large"} {
		types[name] = provider.InstanceType{Name: name, Arch: provider.ArchAMD64}
	}
	types["m7g.large"] = provider.InstanceType{Name: "m7g.large", Arch: provider.ArchARM64}
	return &config.Config{
		ClusterID: "test",
		Shard: config.Shard{
			ID:                  "us-west-2a",
			Infra:               config.Infra{Provider: "fake", InstanceTypes: types},
			SubnetPools:         map[string][]string{"open": {"subnet-a"}, "other": {"subnet-b"}, "closed": {"subnet-c"}},
			DynamicSubnetPools:  []string{"open", "other"},
			DefaultDrainTimeout: 5 * time.Minute,
		},
		Defaults: config.Defaults{
			Userdata: config.Userdata{Inline: "#!/bin/sh"},
			Vars:     map[string]string{"tier": "none", "region": "west"},
			Args:     map[string]any{"labels": map[string]any{"tier": "none", "region": "west"}},
			Files:    map[string]config.File{"a.env": {Kind: "env", Content: map[string]any{"A": "default"}}},
		},
		Templates: map[string]config.Template{
			"worker": {
				Kind: "knd", Arch: provider.ArchAMD64, Size: 2, InstanceType: "m7i.large", SubnetPool: "open",
				Vars:  map[string]string{"role": "worker", "tier": "one"},
				Args:  map[string]any{"labels": map[string]any{"tier": "one"}},
				Files: map[string]config.File{"b.txt": {Kind: "string", Content: map[string]any{"text": "b"}}},
				// Without them, no operator could set vars of the static groups.
				Limits:  config.SettingLimits{Vars: []string{"*"}},
				Tenants: []string{"*"},
			},
			"arm": {
				Kind: "arm", Arch: provider.ArchARM64, Size: 1, InstanceType: "m7g.large", SubnetPool: "closed",
				Userdata: config.Userdata{URL: "https://example.com/arm", Encoding: config.EncodingBase64},
			},
			"bare": {Kind: "bar", Arch: provider.ArchAMD64, Size: 1},
		},
		Groups: map[string]map[string]config.Group{"default": static},
	}
}

// newStorage returns an empty storage.
func newStorage(t testing.TB) storage.Store {
	t.Helper()
	store, err := file.Open(t.TempDir())
	require.NoError(t, err)
	return store
}

// open opens the groups in the storage with the default configuration.
func open(t testing.TB, store storage.Store) *Store {
	t.Helper()
	return openWith(t, store, newConfig())
}

func openWith(t testing.TB, store storage.Store, c *config.Config) *Store {
	t.Helper()
	s, err := Open(t.Context(), nil, c, store)
	require.NoError(t, err)
	return s
}

// upsert makes a change that must succeed.
func upsert(t testing.TB, s *Store, key instance.GroupKey, change Change) *Group {
	t.Helper()
	group, _, err := s.Upsert(t.Context(), key, change)
	require.NoError(t, err)
	return group
}

// get returns a group that must exist.
func get(t testing.TB, s *Store, key instance.GroupKey) *Group {
	t.Helper()
	group, found := s.Get(key)
	require.True(t, found, "there is no group %s", key)
	return group
}

// snapshot returns all groups of a store, without the fields that are kept in memory only.
func snapshot(t *testing.T, s *Store) map[instance.GroupKey]*Group {
	t.Helper()
	groups := map[instance.GroupKey]*Group{}
	for _, key := range s.Keys() {
		group := *get(t, s, key)
		group.Causes = Causes{}
		groups[key] = &group
	}
	return groups
}

// readObject returns the object of the groups, or the zero value.
func readObject(t testing.TB, store storage.Store) storage.Object {
	t.Helper()
	object, err := store.Get(t.Context(), objectKey)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		t.Fatal(err)
	}
	return object
}

// createObject stores groups as a previous server would have.
func createObject(t testing.TB, store storage.Store, content string) {
	t.Helper()
	_, err := store.Create(t.Context(), objectKey, []byte(content))
	require.NoError(t, err)
}

// faultyStore is a storage that fails on demand and counts writes.
type faultyStore struct {
	storagetest.Intercepted
	writes int
	// before and after are the errors of the next writes, one for each write: before the
	// write is carried out or after it. A nil error stands for a successful write.
	before, after []error
	// reading is the error of every Get.
	reading error
}

func newFaultyStore(t testing.TB) *faultyStore {
	t.Helper()
	s := &faultyStore{}
	s.Intercepted = storagetest.Intercepted{Store: newStorage(t), Intercept: s.call}
	return s
}

func (s *faultyStore) call(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
	if !call.IsWrite() {
		if s.reading != nil {
			return s.reading
		}
		return do(ctx)
	}
	s.writes++
	if err := pop(&s.before); err != nil {
		return err
	}
	if err := do(ctx); err != nil {
		return err
	}
	return pop(&s.after)
}

// pop removes and returns the first error of list, nil if it is empty.
func pop(list *[]error) error {
	if len(*list) == 0 {
		return nil
	}
	first := (*list)[0]
	*list = slices.Delete(*list, 0, 1)
	return first
}
