// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardserver

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/sets"

	"nstance.dev/operator/e2e/controlplane"
)

// moment is the content of the storage and the end of the audit log at a time.
type moment struct {
	objects map[string]fs.FileInfo
	audit   controlplane.Position
}

// activity is the work of the server of a shard since a moment: the keys of the objects that it
// created, replaced and removed, and its requests to the API server, reads included.
type activity struct {
	created, replaced, removed []string
	requests                   []controlplane.Request
}

func now(b *testing.B) moment {
	b.Helper()
	return moment{readObjects(b), env.AuditEnd(b)}
}

// since returns the activity between two moments. Every write of an object creates a file, so that
// a write of the same bytes counts too.
func (until moment) since(b *testing.B, from moment, shard string) (a activity) {
	b.Helper()
	for key, object := range until.objects {
		before, found := from.objects[key]
		switch {
		case !found:
			a.created = append(a.created, key)
		case !os.SameFile(before, object) || !before.ModTime().Equal(object.ModTime()):
			a.replaced = append(a.replaced, key)
		}
	}
	for key := range from.objects {
		if _, found := until.objects[key]; !found {
			a.removed = append(a.removed, key)
		}
	}
	a.requests = env.Requests(b, from.audit, func(r controlplane.Request) bool { return r.User == userOf(shard) })
	return a
}

// none reports whether there was no activity.
func (a activity) none() bool {
	return len(a.created) == 0 && len(a.replaced) == 0 && len(a.removed) == 0 && len(a.requests) == 0
}

// writes returns the requests for a change.
func (a activity) writes() (writes []controlplane.Request) {
	for _, request := range a.requests {
		if request.Verb != "get" && request.Verb != "list" && request.Verb != "watch" {
			writes = append(writes, request)
		}
	}
	return writes
}

// readObjects returns the objects in the storage of all shards but for the locks
// of leaders, which are renewed all the time.
func readObjects(b *testing.B) map[string]fs.FileInfo {
	b.Helper()
	bucket := os.DirFS(env.Installation.Bucket())
	objects := map[string]fs.FileInfo{}
	err := fs.WalkDir(bucket, ".", func(key string, entry fs.DirEntry, err error) error {
		// Files whose names begin with a dot are no objects, and temporary files disappear.
		if err != nil || !entry.Type().IsRegular() || strings.HasPrefix(path.Base(key), ".") || strings.HasPrefix(key, "leader/") {
			return ignoreNotExist(err)
		}
		info, err := entry.Info()
		if err == nil {
			objects[key] = info
		}
		return ignoreNotExist(err)
	})
	require.NoError(b, err)
	return objects
}

func ignoreNotExist(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// userOf returns the user of a shard's server in the audit log.
func userOf(shard string) string { return "shard-" + shard }

// cacheDir returns the folder of a server's cache.
func cacheDir(b *testing.B, server *controlplane.Component) string {
	b.Helper()
	for i, arg := range server.Argv[:len(server.Argv)-1] {
		if arg == "--cache-dir" {
			return filepath.Clean(server.Argv[i+1])
		}
	}
	b.Fatalf("%s has no cache: %v", server.Name, server.Argv)
	return ""
}

// expectKeys expects that the server changed exactly these objects.
func expectKeys(b *testing.B, what string, got []string, want ...string) {
	b.Helper()
	assert.Equal(b, want, got, "objects %s", what)
}

// expectInstances expects that the server changed the records of so many instances of a group, and
// no other objects.
func expectInstances(b *testing.B, what string, keys []string, ids map[string]string, count int) {
	b.Helper()
	assert.Len(b, keys, count, "objects %s", what)
	for _, key := range keys {
		if _, found := ids[key]; !found {
			b.Errorf("objects %s: %s is not of the group", what, key)
		}
	}
}

// expectRequests expects one request of each verb for each of the instances with these
// keys, and no other than watches, which are renewed now and then.
func expectRequests(b *testing.B, verbs []string, got []controlplane.Request, keys []string, ids map[string]string) {
	b.Helper()
	want := sets.New[string]()
	for _, key := range keys {
		for _, verb := range verbs {
			want.Insert(verb + " nodes " + ids[key])
		}
	}
	var actual []string
	for _, r := range got {
		if r.Verb != "watch" {
			actual = append(actual, r.Verb+" "+r.Resource+" "+r.Name)
		}
	}
	slices.Sort(actual)
	assert.Equal(b, sets.List(want), actual, "requests")
}
