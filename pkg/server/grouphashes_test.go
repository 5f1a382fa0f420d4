// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/cache"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

// groupMap is the groups of a test.
type groupMap map[instance.GroupKey]*groups.Group

func (m groupMap) Get(key instance.GroupKey) (*groups.Group, bool) {
	group, found := m[key]
	return group, found
}

func (m groupMap) Keys() []instance.GroupKey { return slices.Collect(maps.Keys(m)) }

// TestGroupHashes checks that the cache has the hashes of the groups after they
// were written, also after writes that failed.
func TestGroupHashes(t *testing.T) {
	keyOf := func(name string) instance.GroupKey { return instance.GroupKey{Tenant: "default", Group: name} }
	db, err := cache.Open(t.Context(), filepath.Join(t.TempDir(), "cache.sqlite"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	all := groupMap{keyOf("a"): {RuntimeConfigHash: "1", InfraConfigHash: "2"}, keyOf("b"): {}}
	h := newGroupHashes(nil, db)
	h.groups = all
	h.writeAll(t.Context())

	wantCached := func(what string) {
		t.Helper()
		want := map[instance.GroupKey]cache.Hashes{}
		for key, group := range all {
			want[key] = cache.Hashes{RuntimeConfig: group.RuntimeConfigHash, InfraConfig: group.InfraConfigHash}
		}
		found, err := db.Groups(t.Context())
		require.NoError(t, err)
		if diff := cmp.Diff(want, found); diff != "" {
			t.Errorf("%s (-groups +cache):\n%s", what, diff)
		}
		if diff := cmp.Diff(want, h.written); diff != "" {
			t.Errorf("%s (-groups +written):\n%s", what, diff)
		}
	}
	wantCached("all groups")
	steps := []struct {
		what   string
		change func()
		keys   []string
	}{
		{"a changed group", func() { all[keyOf("a")] = &groups.Group{RuntimeConfigHash: "3", InfraConfigHash: "2"} }, []string{"a"}},
		{"several groups", func() {
			all[keyOf("c")] = &groups.Group{RuntimeConfigHash: "4"}
			delete(all, keyOf("b"))
		}, []string{"a", "b", "c"}},
		{"a group that never existed", func() {}, []string{"d"}},
		{"a group that exists again", func() { all[keyOf("b")] = &groups.Group{} }, []string{"b"}},
	}
	for _, step := range steps {
		step.change()
		for _, name := range step.keys {
			h.enqueue(keyOf(name))
		}
		<-h.wake
		h.writeChanged(t.Context())
		wantCached(step.what)
	}
}

// TestGroupHashesRetriesFailedWrites checks that hashes that the cache rejected
// are written with the next change of the group, and that equal ones are not.
func TestGroupHashesRetriesFailedWrites(t *testing.T) {
	db, err := cache.Open(t.Context(), filepath.Join(t.TempDir(), "cache.sqlite"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	key := instance.GroupKey{Tenant: "default", Group: "a"}
	h := newGroupHashes(nil, db)
	h.groups = groupMap{key: {InfraConfigHash: "1"}}
	h.writeAll(t.Context())
	canceled, cancel := context.WithCancel(t.Context())
	cancel()

	// No hash covers the size.
	h.groups = groupMap{key: {InfraConfigHash: "1", Size: 5}}
	h.enqueue(key)
	if n := len(h.updates(h.takeChanged())); n != 0 {
		t.Errorf("a change of the size updates %d groups", n)
	}
	h.groups = groupMap{key: {InfraConfigHash: "2"}}
	for _, ctx := range []context.Context{canceled, t.Context()} {
		h.enqueue(key)
		h.writeChanged(ctx)
	}
	found, err := db.Groups(t.Context())
	require.NoError(t, err)
	if want := (cache.Hashes{InfraConfig: "2"}); found[key] != want {
		t.Errorf("the cache has %+v, want %+v", found[key], want)
	}
}
