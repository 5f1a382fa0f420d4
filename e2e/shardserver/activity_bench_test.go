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

	"k8s.io/apimachinery/pkg/util/sets"

	"nstance.dev/operator/e2e/controlplane"
)

// moment is what the storage holds and the audit log has at one time.
type moment struct {
	objects map[string]fs.FileInfo
	audit   controlplane.Position
}

// activity is what the server of a shard did since a moment: the keys of the
// objects that it made, replaced and removed, and its requests to the API server,
// reads too.
type activity struct {
	made, replaced, removed []string
	requests                []controlplane.Request
}

func now(b *testing.B) moment {
	b.Helper()
	audit, err := env.AuditLog().End()
	if err != nil {
		b.Fatal(err)
	}
	return moment{readObjects(b), audit}
}

// since tells what happened up to the time until. Every write of an object makes
// a file, so that one of the same bytes shows too.
func (until moment) since(b *testing.B, from moment, shard string) (a activity) {
	b.Helper()
	for key, object := range until.objects {
		before, found := from.objects[key]
		switch {
		case !found:
			a.made = append(a.made, key)
		case !os.SameFile(before, object) || !before.ModTime().Equal(object.ModTime()):
			a.replaced = append(a.replaced, key)
		}
	}
	for key := range from.objects {
		if _, found := until.objects[key]; !found {
			a.removed = append(a.removed, key)
		}
	}
	requests, err := env.AuditLog().Requests(from.audit, func(r controlplane.Request) bool { return r.User == userOf(shard) })
	if err != nil {
		b.Fatal(err)
	}
	a.requests = requests
	return a
}

// none is true when nothing happened at all.
func (a activity) none() bool {
	return len(a.made) == 0 && len(a.replaced) == 0 && len(a.removed) == 0 && len(a.requests) == 0
}

// writes are the requests of all that asked for a change.
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
	bucket := os.DirFS(env.Nstance.Bucket())
	objects := map[string]fs.FileInfo{}
	err := fs.WalkDir(bucket, ".", func(key string, entry fs.DirEntry, err error) error {
		// Dots begin the names of what is no object, and temporary files go.
		if err != nil || !entry.Type().IsRegular() || strings.HasPrefix(path.Base(key), ".") || strings.HasPrefix(key, "leader/") {
			return ignoreGone(err)
		}
		info, err := entry.Info()
		if err == nil {
			objects[key] = info
		}
		return ignoreGone(err)
	})
	if err != nil {
		b.Fatal(err)
	}
	return objects
}

func ignoreGone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// userOf is the server of a shard in the audit log.
func userOf(shard string) string { return "shard-" + shard }

// cacheDir is the folder that a server has its cache in.
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

// expectKeys expects that exactly these objects were treated so.
func expectKeys(b *testing.B, what string, got []string, want ...string) {
	b.Helper()
	if !slices.Equal(got, want) {
		b.Errorf("objects %s: %v, want %v", what, got, want)
	}
}

// expectInstances expects that the records of so many of the instances of one
// group were treated so, and nothing else was.
func expectInstances(b *testing.B, what string, keys []string, ids map[string]string, count int) {
	b.Helper()
	if len(keys) != count {
		b.Errorf("objects %s: %v, want %d", what, keys, count)
	}
	for _, key := range keys {
		if _, found := ids[key]; !found {
			b.Errorf("objects %s: %s is not of the group", what, key)
		}
	}
}

// expectRequests expects one request for each of the instances with these keys,
// and no other than watches, which are renewed now and then.
func expectRequests(b *testing.B, verb string, got []controlplane.Request, keys []string, ids map[string]string) {
	b.Helper()
	want := sets.New[string]()
	for _, key := range keys {
		want.Insert(verb + " nodes " + ids[key])
	}
	var asked []string
	for _, r := range got {
		if r.Verb != "watch" {
			asked = append(asked, r.Verb+" "+r.Resource+" "+r.Name)
		}
	}
	slices.Sort(asked)
	if !slices.Equal(asked, sets.List(want)) {
		b.Errorf("requests %q, want %q", asked, sets.List(want))
	}
}
