// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storagetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/pkg/server/storage"
)

// list returns the keys below prefix, without it.
func list(t testing.TB, store storage.Store, below, prefix string) []string {
	t.Helper()
	infos, err := store.List(t.Context(), below+prefix)
	require.NoError(t, err)
	keys := []string{}
	for _, info := range infos {
		keys = append(keys, strings.TrimPrefix(info.Key, below))
	}
	return keys
}

func testList(t *testing.T, store storage.Store) {
	const below = "list/"
	// The slash sorts after "-" and "." and before all letters and digits.
	keys := []string{"a", "b-c", "b.c", "b/a", "b/b/a", "b/b/c", "b0", "bb/a", "c"}
	etags := map[string]string{}
	for _, key := range slices.Backward(keys) {
		etags[key] = mustCreate(t, store, below+key, key)
	}
	tests := []struct {
		prefix string
		want   []string
	}{
		{"", keys},
		{"b", []string{"b-c", "b.c", "b/a", "b/b/a", "b/b/c", "b0", "bb/a"}},
		{"b/", []string{"b/a", "b/b/a", "b/b/c"}},
		{"b/b", []string{"b/b/a", "b/b/c"}},
		{"b/b/", []string{"b/b/a", "b/b/c"}},
		{"b/b/c", []string{"b/b/c"}},
		{"c", []string{"c"}},
		{"c/", []string{}},
		{"d", []string{}},
		{"d/e/", []string{}},
		{"B", []string{}},
	}
	for _, tc := range tests {
		assert.Empty(t, cmp.Diff(tc.want, list(t, store, below, tc.prefix)), "keys that begin with %q (-want +got)", tc.prefix)
	}
	infos, err := store.List(t.Context(), below)
	require.NoError(t, err)
	for _, info := range infos {
		assert.Equal(t, etags[strings.TrimPrefix(info.Key, below)], info.ETag, "the etag of %s", info.Key)
	}
	// All objects, also those of other tests.
	infos, err = store.List(t.Context(), "")
	require.NoError(t, err)
	if !slices.IsSortedFunc(infos, func(a, b storage.Info) int { return strings.Compare(a.Key, b.Key) }) || len(infos) < len(keys) {
		t.Errorf("the whole storage has %v, want at least %d sorted keys", infos, len(keys))
	}
}

// testListMany lists more than the 1000 keys that S3 returns in one response.
func testListMany(t *testing.T, open func(t testing.TB) storage.Store) {
	const below = "list-many/"
	const objects = 1203
	store := open(t)
	var want []string
	var group errgroup.Group
	group.SetLimit(16)
	for i := range objects {
		key := fmt.Sprintf("folder%d/object%04d", i/500, i)
		want = append(want, key)
		group.Go(func() error {
			_, err := store.Create(t.Context(), below+key, []byte(key))
			return err
		})
	}
	require.NoError(t, group.Wait())
	assert.Empty(t, cmp.Diff(want, list(t, open(t), below, "")), "(-written +listed)")
}

// testListWhileWriting lists objects while they are replaced. Every list must have
// all of them.
func testListWhileWriting(t *testing.T, open func(t testing.TB) storage.Store) {
	const below = "list-while-writing/"
	const objects, replaces, lists = 10, 10, 20
	writer, reader := open(t), open(t)
	var want []string
	var group errgroup.Group
	for i := range objects {
		key := fmt.Sprintf("object%d", i)
		want = append(want, key)
		etag := mustCreate(t, writer, below+key, "0")
		group.Go(func() error {
			for n := range replaces {
				var err error
				if etag, err = writer.Replace(t.Context(), below+key, fmt.Append(nil, "written", n), etag); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for range lists {
		if diff := cmp.Diff(want, list(t, reader, below, "")); diff != "" {
			t.Errorf("(-written +listed):\n%s", diff)
			break
		}
	}
	require.NoError(t, group.Wait())
}
