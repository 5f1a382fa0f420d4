// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storagetest

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/storage"
)

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

// wantKeyError checks that err names the key and is none of the errors that
// callers distinguish.
func wantKeyError(t testing.TB, method, key string, err error) {
	t.Helper()
	quoted := strings.Trim(strconv.Quote(key), `"`)
	if err == nil || errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrConflict) || !strings.Contains(err.Error(), quoted) {
		t.Errorf("%s with the bad key %q: got error %v, want one that names the key", method, key, err)
	}
}
