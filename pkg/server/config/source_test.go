// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

// newStore returns a storage with a configuration, unless it is empty, under the
// key of shard us-west-2a.
func newStore(t *testing.T, text string) storage.Store {
	t.Helper()
	store, err := file.Open(t.TempDir())
	require.NoError(t, err)
	if text != "" {
		_, err = store.Create(t.Context(), "config/us-west-2a.jsonc", []byte(text))
		require.NoError(t, err)
	}
	return store
}

func TestReadAndParseFor(t *testing.T) {
	store := newStore(t, example)
	source, err := Read(t.Context(), store, "us-west-2a")
	require.NoError(t, err)
	c, err := source.ParseFor("us-west-2a", providers)
	require.NoError(t, err)
	object, err := store.Get(t.Context(), "config/us-west-2a.jsonc")
	require.NoError(t, err)
	if s := c.Source; s.Key != "config/us-west-2a.jsonc" || string(s.Data) != example || s.ETag != object.ETag || !s.LastModified.Equal(object.LastModified) {
		t.Errorf("the source is %s with tag %q of %v, want that of the object", s.Key, s.ETag, s.LastModified)
	}
}

func TestReadFails(t *testing.T) {
	if _, err := Read(t.Context(), newStore(t, ""), "us-west-2a"); !errors.Is(err, storage.ErrNotFound) || !strings.Contains(err.Error(), "config/us-west-2a.jsonc") {
		t.Errorf("a configuration that is not there gives %v", err)
	}
	path := filepath.Join(t.TempDir(), "shard.jsonc")
	if _, err := ReadFile(path); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that is not there gives %v", err)
	}
}

func TestParseForFails(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: "cluster.secrets.encryption_key: Required value",
		strings.Replace(example, `"id": "us-west-2a"`, `"id": "us-west-2b"`, 1): `shard.id: Invalid value: "us-west-2b": must be "us-west-2a"`,
	} {
		_, err := Source{Key: "config/us-west-2a.jsonc", Data: []byte(text)}.ParseFor("us-west-2a", providers)
		_, invalid := errors.AsType[*InvalidError](err)
		if !invalid || !strings.HasPrefix(err.Error(), "configuration config/us-west-2a.jsonc:\n"+want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shard.jsonc")
	read := func(text string) Source {
		t.Helper()
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		written := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		require.NoError(t, os.Chtimes(path, written, written))
		source, err := ReadFile(path)
		require.NoError(t, err)
		if source.Key != path || string(source.Data) != text || !source.LastModified.Equal(written) {
			t.Errorf("the source is %s of %v", source.Key, source.LastModified)
		}
		return source
	}
	// The content makes the tag, and nothing else.
	x, y := read("x"), read("y")
	if x.ETag == y.ETag || x.ETag != read("x").ETag {
		t.Error("tags do not follow the content")
	}
}
