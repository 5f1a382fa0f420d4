// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storagetest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/pkg/server/storage"
)

// list returns the keys with the prefix, without the prefix.
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
	// The empty prefix lists all objects, also objects of other tests.
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

func testUnusualKeys(t *testing.T, open func(t testing.TB) storage.Store) {
	const below = "unusual-keys/"
	keys := []string{
		"with space", " ", "+", "%", "%2F", "a%20b", "~", "*", "a?b=c&d", "#", "@", ":", ";", ",", "!", "$", "|", "^",
		"'", `"`, "`", `\`, "(", "[a-z]", "{a}", "<a>", "&amp;", "a..b", "trailing.", "-", "--", "_", "UPPER", "upper",
		"ü", "日本語", "🙂", strings.Repeat("x", 200), "p/" + strings.Repeat("y/", 60) + "z",
	}
	writer, reader := open(t), open(t)
	for _, key := range keys {
		etag := mustCreate(t, writer, below+key, key)
		wantObject(t, reader, below+key, key, etag)
		if got := list(t, reader, below, key); !slices.Contains(got, key) {
			t.Errorf("%q is not among the keys with that prefix: %q", key, got)
		}
		wantObject(t, reader, below+key, "changed", mustReplace(t, reader, below+key, "changed", etag))
	}
	slices.Sort(keys)
	assert.Empty(t, cmp.Diff(keys, list(t, reader, below, "")), "(-written +listed)")
	for _, key := range keys {
		assert.NoError(t, writer.Delete(t.Context(), below+key))
	}
	assert.Empty(t, list(t, reader, below, ""), "still listed after the deletion")
}

func testBadKeys(t *testing.T, store storage.Store) {
	before := list(t, store, "", "")
	keys := []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a/..", ".hidden", "a/.lock",
		"a\x00b", "a\nb", "a\tb", "a\x7fb", "\ufffe", "\xff", "a/\xc3\x28",
		strings.Repeat("x", 256), strings.Repeat("x/", 512) + "x",
	}
	for _, key := range keys {
		_, getErr := store.Get(t.Context(), key)
		_, createErr := store.Create(t.Context(), key, nil)
		_, replaceErr := store.Replace(t.Context(), key, nil, "etag")
		for method, err := range map[string]error{
			"Get": getErr, "Create": createErr, "Replace": replaceErr, "Delete": store.Delete(t.Context(), key),
		} {
			wantKeyError(t, method, key, err)
		}
	}
	for _, prefix := range []string{"/", "/a", "a//", "a//b", "..", "../", "a/../", "\xff"} {
		_, err := store.List(t.Context(), prefix)
		wantKeyError(t, "List", prefix, err)
	}
	assert.Empty(t, cmp.Diff(before, list(t, store, "", "")), "bad keys have changed the storage (-before +after)")
}

// wantKeyError checks that err names the key and wraps no error that callers distinguish.
func wantKeyError(t testing.TB, method, key string, err error) {
	t.Helper()
	quoted := strings.Trim(strconv.Quote(key), `"`)
	if err == nil || errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrConflict) || !strings.Contains(err.Error(), quoted) {
		t.Errorf("%s with the bad key %q: got error %v, want one that names the key", method, key, err)
	}
}
