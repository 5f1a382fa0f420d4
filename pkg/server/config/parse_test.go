// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		example,
		// These texts are short, so that they stay readable after a change.
		fmt.Sprintf(required, ``, ``),
		`{"cluster": {"leader_election": {"enabled": true, "interval": "5s", "timeout": "1d"}, "secrets": {"old_encryption_keys": [{"file": "/"}, {}, 1]}}}`,
		`{"shard": {"infra": {"provider": "fake", "options": {"endpoint": ["e"], "x": {}}}}}`,
		`{"shard": {"bind": {"health_addr": ":1", "election_addr": "[::]:1"}, "advertise": {"operator_addr": "a:0"}}}`,
		`{"shard": {"subnet_pools": {"p": ["s", "s"], "": []}, "dynamic_subnet_pools": ["p", "q"]}}`,
		`{"shard": {"expiry": {"eligible_age": "2d", "forced_age": "1h"}, "garbage_collection": {"interval": "0s"}, "request_timeout": "1ns"}}`,
		`{"certificates": {"operator": {"ttl": 1e1}}}`,
		`{"defaults": {"userdata": {"inline": "{{.Nonce}}", "url": "http://a/b"}, "vars": {"a": "b"}, "args": {"labels": [{"": 1e9}], "": "{{"}, "files": {"a": {"kind": "json", "x": null}}}}`,
		`{"templates": {"t": {"kind": "knd", "arch": "amd64", "size": -1, "instance_type": "t3.large", "args": {"annotations": {"a/b": "{{end}}"}}}}}`,
		`{"groups": {"default": {"g": {"template": "t", "size": 2147483647, "drain_timeout": "0s"}, "": null}}}`,
		`[]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, providers)
		again, errAgain := Parse(data, providers)
		if diff := cmp.Diff(c, again); diff != "" || text(err) != text(errAgain) {
			t.Fatalf("the second result differs: %s\n%v\n%v", diff, err, errAgain)
		}
		if (c == nil) == (err == nil) {
			t.Fatalf("got %v and error %v, want one of them", c, err)
		}
		if err != nil {
			checkPaths(t, err)
			return
		}
		// Other packages rely on this without another check.
		for tenant, groups := range c.Groups {
			for name, group := range groups {
				template, found := c.Templates[group.Template]
				if !found || template.Size < 0 || ptr.Deref(group.Size, 0) < 0 || ptr.Deref(group.DrainTimeout, 0) < 0 {
					t.Errorf("accepted group %s/%s: %+v of template %+v", tenant, name, group, template)
				}
			}
		}
	})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// checkPaths checks that every mistake has its path, unless the text as a whole is not JSON.
func checkPaths(t *testing.T, err error) {
	t.Helper()
	invalid, ok := errors.AsType[*InvalidError](err)
	require.True(t, ok, "got %T %v, want an InvalidError", err, err)
	mistakes, several := invalid.Mistakes.(interface{ Unwrap() []error })
	if !several {
		return
	}
	for _, mistake := range mistakes.Unwrap() {
		if located, ok := errors.AsType[*field.Error](mistake); !ok || located.Field == "" {
			t.Errorf("%v names no path", mistake)
		}
	}
}

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
	// Only the content determines the tag.
	x, y := read("x"), read("y")
	if x.ETag == y.ETag || x.ETag != read("x").ETag {
		t.Error("tags do not follow the content")
	}
}
