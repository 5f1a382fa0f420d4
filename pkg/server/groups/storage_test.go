// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nstance.dev/operator/pkg/server/instance"
)

// snapshot returns all groups of a store.
func snapshot(t *testing.T, s *Store) map[instance.GroupKey]*Group {
	t.Helper()
	groups := map[instance.GroupKey]*Group{}
	for _, key := range s.Keys() {
		groups[key] = get(t, s, key)
	}
	return groups
}

func TestChangesSurviveARestart(t *testing.T) {
	// The folder is made by Open.
	dir := filepath.Join(t.TempDir(), "data", "groups")
	s := open(t, dir)
	upsert(t, s, dynamic, Change{Template: "worker", Size: 3, InstanceType: "t3.large", SubnetPools: []string{"other", "open"}, Vars: map[string]string{"a": "<1>"}})
	upsert(t, s, instance.GroupKey{Tenant: "other", Group: "dynamic"}, Change{Template: "worker"})
	upsert(t, s, main, Change{Size: 8, Vars: map[string]string{"b": "2"}})
	upsert(t, s, plain, Change{Size: 8})
	gone := instance.GroupKey{Tenant: "default", Group: "gone"}
	upsert(t, s, gone, Change{Template: "worker"})
	for _, key := range []instance.GroupKey{gone, plain} {
		if _, err := s.Delete(key); err != nil {
			t.Fatal(err)
		}
	}
	want := snapshot(t, s)
	if len(want) != 4 {
		t.Fatalf("there are %d groups, want main, plain and two that are dynamic", len(want))
	}
	if diff := cmp.Diff(want, snapshot(t, open(t, dir))); diff != "" {
		t.Errorf("(-before +after the restart):\n%s", diff)
	}
}

func TestWritesOnlyWhatDiffers(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	path := filepath.Join(dir, "us-west-2a.jsonc")
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("opening has written the file: %v", err)
	}
	full := Change{Template: "worker", Size: 3, InstanceType: "t3.large", SubnetPools: []string{"other"}, Vars: map[string]string{"a": "1"}}
	steps := []struct {
		name            string
		change          Change
		key             instance.GroupKey
		writes, changes bool
	}{
		{"a new group", full, dynamic, true, true},
		{"the same again", full, dynamic, false, false},
		{"the size alone, the same", Change{Size: 3}, dynamic, false, false},
		{"another size", Change{Size: 4}, dynamic, true, true},
		{"the template's value, now of its own", Change{Template: "worker"}, instance.GroupKey{Tenant: "default", Group: "second"}, true, true},
		// Stored, so that it stays when the configuration changes.
		{"the configured size of a static group", Change{Size: 3}, main, true, false},
		{"the configured size of a static group again", Change{Size: 3}, main, false, false},
	}
	for _, step := range steps {
		before, _ := os.Stat(path)
		_, changed, err := s.Upsert(step.key, step.change)
		if err != nil {
			t.Fatal(err)
		}
		after, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		// Every write makes another file.
		if wrote := !os.SameFile(before, after); wrote != step.writes || changed != step.changes {
			t.Errorf("%s: written %t and changed %t, want %t and %t", step.name, wrote, changed, step.writes, step.changes)
		}
	}
}

func TestAFailedWriteChangesNothing(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	upsert(t, s, dynamic, Change{Template: "worker", Size: 1})
	before, file := snapshot(t, s), readFile(t, dir)

	// A folder in its place keeps the temporary file from being written.
	obstacle := filepath.Join(dir, "us-west-2a.jsonc.tmp")
	if err := os.Mkdir(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	if group, changed, err := s.Upsert(dynamic, Change{Size: 2}); err == nil || group != nil || changed {
		t.Errorf("upsert gives %+v, changed %t, error %v", group, changed, err)
	} else if !strings.Contains(err.Error(), dynamic.String()) || !strings.Contains(err.Error(), obstacle) {
		t.Errorf("the error names neither group nor file: %v", err)
	}
	if changed, err := s.Delete(dynamic); err == nil || changed {
		t.Errorf("delete gives changed %t, error %v", changed, err)
	}
	if diff := cmp.Diff(before, snapshot(t, s)); diff != "" {
		t.Errorf("memory has changed (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(file, readFile(t, dir)); diff != "" {
		t.Errorf("the file has changed (-before +after):\n%s", diff)
	}

	// The same change again is not taken for one that is stored already.
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	upsert(t, s, dynamic, Change{Size: 2})
	if size := get(t, open(t, dir), dynamic).Size; size != 2 {
		t.Errorf("after a restart the size is %d, want 2", size)
	}
}

// TestTheFileIsWholeAtAnyMoment reads the file all the time that many callers
// change it.
func TestTheFileIsWholeAtAnyMoment(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	upsert(t, s, dynamic, Change{Template: "worker"})

	const callers, changes = 4, 25
	var writing sync.WaitGroup
	for i := range callers {
		writing.Go(func() {
			key := instance.GroupKey{Tenant: "default", Group: fmt.Sprintf("group-%d", i)}
			for size := range int32(changes) {
				if _, _, err := s.Upsert(key, Change{Template: "worker", Size: size}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	written := make(chan struct{})
	go func() {
		writing.Wait()
		close(written)
	}()
	for done := false; !done; {
		select {
		case <-written:
			done = true
		default:
		}
		content, err := s.file.read()
		if err != nil {
			t.Fatal(err)
		}
		if content["default"]["dynamic"] == nil {
			t.Fatalf("the file has lost a group: %v", content)
		}
	}
	if diff := cmp.Diff(snapshot(t, s), snapshot(t, open(t, dir))); diff != "" {
		t.Errorf("(-memory +file):\n%s", diff)
	}
}

func TestOpenIgnoresWhatACrashLeft(t *testing.T) {
	dir := t.TempDir()
	upsert(t, open(t, dir), dynamic, Change{Template: "worker", Size: 4})
	if err := os.WriteFile(filepath.Join(dir, "us-west-2a.jsonc.tmp"), []byte(`{"default": {"dyn`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if size := get(t, s, dynamic).Size; size != 4 {
		t.Errorf("the size is %d, want 4", size)
	}
	upsert(t, s, dynamic, Change{Size: 5})
	if size := get(t, open(t, dir), dynamic).Size; size != 5 {
		t.Errorf("the size is %d, want 5", size)
	}
}

func TestOpenRefusesAFile(t *testing.T) {
	tests := []struct{ name, content, want string }{
		{"that is empty", ``, `reading the dynamic groups in`},
		{"that is cut off", `{"default": {"dynamic": {"size": 1`, `hujson: line 1`},
		{"that goes on behind its end", `{} {}`, `hujson: line 1`},
		{"of zeros", "\x00\x00\x00\x00", `hujson: line 1`},
		{"that is null", `null`, `must be an object, not null`},
		{"that is a list", `[]`, `cannot unmarshal array`},
		{"with a key of a later version", `{"default": {"dynamic": {"size": 1, "color": "red"}}}`, `unknown field "color"`},
		{"with a group that is null", `{"default": {"dynamic": null}}`, `default.dynamic: Required value: must be an object, not null`},
		{"with a dynamic group without a template", `{"default": {"dynamic": {"size": 1}}}`, `default.dynamic.template: Required value: must name a template`},
		{"with a negative size", `{"default": {"dynamic": {"template": "worker", "size": -1}}}`, `default.dynamic.size: Invalid value: -1: must not be negative`},
		{"with an ill-formed key", `{"default": {"Dynamic": {"template": "worker", "size": 1}}}`, `default.Dynamic: Invalid value: "Dynamic": "Dynamic" must consist of`},
		{"with an ill-formed tenant", `{"a--b": {"dynamic": {"template": "worker", "size": 1}}}`, `a--b.dynamic: Invalid value: "a--b": "a--b" must not contain`},
		{"with an unknown template", `{"default": {"dynamic": {"template": "gone", "size": 1}}}`, `default.dynamic.template: Invalid value: "gone": unknown template`},
		{"with an unknown instance type", `{"default": {"dynamic": {"template": "worker", "size": 1, "instance_type": "gone"}}}`, `default.dynamic.instance_type: Invalid value: "gone"`},
		{"with an unknown pool", `{"default": {"dynamic": {"template": "worker", "size": 1, "subnet_pools": ["gone"]}}}`, `default.dynamic.subnet_pools[0]: Invalid value: "gone": unknown subnet pool`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			writeFile(t, dir, tc.content)
			s, err := Open(t.Context(), newConfig(t, static), dir)
			if s != nil || err == nil {
				t.Fatalf("got a store with %v, error %v", s, err)
			}
			if !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got  %s\nwant %s", err, tc.want)
			}
			if content := readFile(t, dir); content != tc.content {
				t.Errorf("the file was changed to %q", content)
			}
		})
	}
}

// TestTheConfigurationChanges restarts with another configuration than that
// with which the changes were stored.
func TestTheConfigurationChanges(t *testing.T) {
	t.Run("static groups are dropped", func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir)
		before := *upsert(t, s, main, Change{Size: 8})
		s, err := Open(t.Context(), newConfig(t, `{}`), dir)
		if err != nil {
			t.Fatal(err)
		}
		// One that an operator has changed is dynamic and what it was.
		wantDynamic(t, s, before)
		// Nothing is known of one that nobody has.
		if group, found := s.Get(plain); found {
			t.Errorf("is still there: %+v", group)
		}
	})
	t.Run("a static group changes before it is dropped", func(t *testing.T) {
		dir := t.TempDir()
		upsert(t, open(t, dir), plain, Change{Size: 8})
		s, err := Open(t.Context(), newConfig(t, `{"default": {"plain": {"template": "arm", "vars": {"a": "b"}}}}`), dir)
		if err != nil {
			t.Fatal(err)
		}
		before := *get(t, s, plain)
		if before.Template != "arm" || before.Size != 8 {
			t.Errorf("is %+v, want the configured template and the stored size", before)
		}
		if s, err = Open(t.Context(), newConfig(t, `{}`), dir); err != nil {
			t.Fatal(err)
		}
		wantDynamic(t, s, before)
	})
	t.Run("a dynamic group becomes static", func(t *testing.T) {
		dir := t.TempDir()
		writeFile(t, dir, `{"default": {"dynamic": {"template": "gone", "size": 8, "subnet_pools": ["gone"]}}}`)
		s, err := Open(t.Context(), newConfig(t, `{"default": {"dynamic": {"template": "arm", "size": 1}}}`), dir)
		if err != nil {
			t.Fatal(err)
		}
		group := get(t, s, dynamic)
		if !group.Static || group.Template != "arm" || group.Size != 8 || !cmp.Equal(group.SubnetPools, []string{"closed"}) {
			t.Errorf("is %+v, want the configured template and pool, and the stored size", group)
		}
	})
	t.Run("a pool is no longer for dynamic groups", func(t *testing.T) {
		dir := t.TempDir()
		writeFile(t, dir, `{"default": {"dynamic": {"template": "worker", "size": 1, "subnet_pools": ["closed"]}}}`)
		s := open(t, dir)
		if size := upsert(t, s, dynamic, Change{Size: 5}).Size; size != 5 {
			t.Errorf("the size is %d, want 5", size)
		}
	})
}
