// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

func TestChangesSurviveARestart(t *testing.T) {
	store := newStorage(t)
	s := open(t, store)
	upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker", InstanceType: "t3.large", SubnetPools: []string{"other", "open"}, Vars: map[string]string{"a": "<1>"}}, Size: 3})
	upsert(t, s, instance.GroupKey{Tenant: "other", Group: "dynamic"}, Change{Settings: Settings{Template: "worker"}})
	upsert(t, s, main, Change{Size: 8, Settings: Settings{Vars: map[string]string{"b": "2"}}})
	upsert(t, s, plain, Change{Size: 8})
	deleted := instance.GroupKey{Tenant: "default", Group: "deleted"}
	upsert(t, s, deleted, Change{Settings: Settings{Template: "worker"}})
	for _, key := range []instance.GroupKey{deleted, plain} {
		_, err := s.Delete(t.Context(), key, nil)
		require.NoError(t, err)
	}
	want := snapshot(t, s)
	if len(want) != 4 {
		t.Fatalf("there are %d groups, want main, plain and two that are dynamic", len(want))
	}
	if diff := cmp.Diff(want, snapshot(t, open(t, store))); diff != "" {
		t.Errorf("(-before +after the restart):\n%s", diff)
	}
}

func TestOpenAcceptsComments(t *testing.T) {
	store := newStorage(t)
	createObject(t, store, `{
		// Made by hand.
		"default": {"dynamic": {"template": "worker", "size": 4,}},
	}`)
	if size := get(t, open(t, store), dynamic).Size; size != 4 {
		t.Errorf("the size is %d, want 4", size)
	}
}

func TestWritesOnlyWhatDiffers(t *testing.T) {
	store := newFaultyStore(t)
	s := open(t, store)
	if store.writes > 0 {
		t.Error("Open has written")
	}
	full := Change{Settings: Settings{Template: "worker", InstanceType: "t3.large", SubnetPools: []string{"other"}, Vars: map[string]string{"a": "1"}}, Size: 3}
	steps := []struct {
		name    string
		change  Change
		key     instance.GroupKey
		writes  int
		changes bool
	}{
		{"a new group", full, dynamic, 1, true},
		{"the same again", full, dynamic, 0, false},
		{"only the size, unchanged", Change{Size: 3}, dynamic, 0, false},
		{"another size", Change{Size: 4}, dynamic, 1, true},
		{"the value of the template", Change{Settings: Settings{Template: "worker"}}, instance.GroupKey{Tenant: "default", Group: "second"}, 1, true},
		// It is stored, so that it remains when the configuration changes.
		{"the configured size of a static group", Change{Size: 3}, main, 1, false},
		{"the configured size of a static group again", Change{Size: 3}, main, 0, false},
	}
	for _, step := range steps {
		before := store.writes
		_, changed, err := s.Upsert(t.Context(), step.key, step.change)
		require.NoError(t, err)
		if writes := store.writes - before; writes != step.writes || changed != step.changes {
			t.Errorf("%s: %d writes and changed %t, want %d and %t", step.name, writes, changed, step.writes, step.changes)
		}
	}
}

func TestFailedWriteChangesNothing(t *testing.T) {
	full := errors.New("disk full")
	store := newFaultyStore(t)
	s := open(t, store)
	upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 1})
	before, object := snapshot(t, s), readObject(t, store)

	store.before = []error{full, full}
	if group, changed, err := s.Upsert(t.Context(), dynamic, Change{Size: 2}); !errors.Is(err, full) || group != nil || changed {
		t.Errorf("Upsert returns %+v, changed %t, error %v", group, changed, err)
	} else if !strings.Contains(err.Error(), dynamic.String()) {
		t.Errorf("the error does not name the group: %v", err)
	}
	if changed, err := s.Delete(t.Context(), dynamic, nil); !errors.Is(err, full) || changed {
		t.Errorf("Delete returns changed %t, error %v", changed, err)
	}
	if diff := cmp.Diff(before, snapshot(t, s)); diff != "" {
		t.Errorf("memory has changed (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(object, readObject(t, store)); diff != "" {
		t.Errorf("the object has changed (-before +after):\n%s", diff)
	}

	// The same change is written again.
	upsert(t, s, dynamic, Change{Size: 2})
	if size := get(t, open(t, store), dynamic).Size; size != 2 {
		t.Errorf("after a restart the size is %d, want 2", size)
	}
}

// TestConcurrentChanges changes groups in several goroutines while another goroutine reads:
// every acknowledged change must be stored.
func TestConcurrentChanges(t *testing.T) {
	store := newStorage(t)
	s := open(t, store)
	const callers, changes = 4, 25
	keyOf := func(i int) instance.GroupKey {
		return instance.GroupKey{Tenant: "default", Group: fmt.Sprintf("group-%d", i)}
	}
	var writers sync.WaitGroup
	for i := range callers {
		writers.Go(func() {
			for size := range int32(changes) {
				if _, _, err := s.Upsert(t.Context(), keyOf(i), Change{Settings: Settings{Template: "worker"}, Size: size}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	written := make(chan struct{})
	go func() {
		writers.Wait()
		close(written)
	}()
	last := map[instance.GroupKey]int32{}
	for done := false; !done; {
		select {
		case <-written:
			done = true
		default:
		}
		for _, key := range s.Keys() {
			size := get(t, s, key).Size
			if size < last[key] {
				t.Fatalf("the size of %s went back from %d to %d", key, last[key], size)
			}
			last[key] = size
		}
	}
	for i := range callers {
		if size := last[keyOf(i)]; size != changes-1 {
			t.Errorf("the size of %s is %d, want %d", keyOf(i), size, changes-1)
		}
	}
	if diff := cmp.Diff(snapshot(t, s), snapshot(t, open(t, store))); diff != "" {
		t.Errorf("(-memory +storage):\n%s", diff)
	}
}

func TestOpenRejects(t *testing.T) {
	tests := []struct{ name, content, want string }{
		{"an object that is empty", ``, `hujson: line 1`},
		{"an object that is cut off", `{"default": {"dynamic": {"size": 1`, `hujson: line 1`},
		{"an object with data after its end", `{} {}`, `hujson: line 1`},
		{"an object of zeros", "\x00\x00\x00\x00", `hujson: line 1`},
		{"an object that is null", `null`, `must be an object, not null`},
		{"an object that is a list", `[]`, `cannot unmarshal array`},
		{"an object with a group that is null", `{"default": {"dynamic": null}}`, `default.dynamic: Required value: must be an object, not null`},
		{"an object with a dynamic group without a template", `{"default": {"dynamic": {"size": 1}}}`, `default.dynamic.template: Required value: must name a template`},
		{"an object with a negative size", `{"default": {"dynamic": {"template": "worker", "size": -1}}}`, `default.dynamic.size: Invalid value: -1: must not be negative`},
		{"an object with an empty id to remove first", `{"default": {"dynamic": {"template": "worker", "size": 1, "remove_first": [""]}}}`, `default.dynamic.remove_first[0]: Required value: must be the id`},
		{"an object with a revision without uid", `{"default": {"dynamic": {"template": "worker", "size": 1, "revision": "/1"}}}`, `default.dynamic.revision.uid: Required value`},
		{"an object with a revision without generation", `{"default": {"dynamic": {"template": "worker", "size": 1, "revision": "u"}}}`, `invalid revision "u": must be UID/GENERATION`},
		{"an object with a revision whose generation is no number", `{"default": {"dynamic": {"template": "worker", "size": 1, "revision": "u/v"}}}`, `invalid generation of revision "u/v"`},
		{"an object with a revision with a negative generation", `{"default": {"dynamic": {"template": "worker", "size": 1, "revision": "u/-1"}}}`, `default.dynamic.revision.generation: Invalid value: -1`},
		{"an object with a revision of a later version", `{"default": {"dynamic": {"template": "worker", "size": 1, "revision": {"uid": "u"}}}}`, `cannot unmarshal object`},
		{"an object with retired uids that are no lists", `{"retired_uids": {"default": {"u": 1}}}`, `cannot unmarshal object`},
		{"an object with an empty list of retired uids", `{"retired_uids": {"default": []}}`, `retired_uids[default]: Required value`},
		{"an object with a retired uid that is empty", `{"retired_uids": {"default": ["u", ""]}}`, `retired_uids[default][1]: Required value`},
		{"an object with an malformed key", `{"default": {"Dynamic": {"template": "worker", "size": 1}}}`, `default.Dynamic: Invalid value: "Dynamic": "Dynamic" must consist of`},
		{"an object with an malformed tenant", `{"a--b": {"dynamic": {"template": "worker", "size": 1}}}`, `a--b.dynamic: Invalid value: "a--b": "a--b" must not contain`},
		{"an object with an unknown template", `{"default": {"dynamic": {"template": "missing", "size": 1}}}`, `default.dynamic.template: Invalid value: "missing": unknown template`},
		{"an object with an unknown instance type", `{"default": {"dynamic": {"template": "worker", "size": 1, "instance_type": "missing"}}}`, `default.dynamic.instance_type: Invalid value: "missing"`},
		{"an object with an invalid drain timeout", `{"default": {"dynamic": {"template": "worker", "size": 1, "drain_timeout": "soon"}}}`, `invalid duration "soon"`},
		{"an object with a negative drain timeout", `{"default": {"dynamic": {"template": "worker", "size": 1, "drain_timeout": "-1s"}}}`, `default.dynamic.drain_timeout: Invalid value: "-1s": must not be negative`},
		{"an object with a label that no Node can have", `{"default": {"dynamic": {"template": "worker", "size": 1, "node": {"labels": {"a": "b c"}}}}}`, `default.dynamic.node.labels[a]: Invalid value: "b c"`},
		{"an object with a negative drain timeout of an operator", `{"default": {"dynamic": {"template": "worker", "size": 1, "drain_timeout_seconds": -1}}}`, `default.dynamic.drain_timeout_seconds: Invalid value: -1: must not be negative`},
		{"an object with an unknown pool", `{"default": {"dynamic": {"template": "worker", "size": 1, "subnet_pools": ["missing"]}}}`, `default.dynamic.subnet_pools[0]: Invalid value: "missing": unknown subnet pool`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			store := newStorage(t)
			createObject(t, store, tc.content)
			s, err := Open(t.Context(), nil, newConfig(), store)
			if s != nil || err == nil {
				t.Fatalf("got a store with %v, error %v", s, err)
			}
			if !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), objectKey) {
				t.Errorf("got  %s\nwant %s", err, tc.want)
			}
			if content := string(readObject(t, store).Data); content != tc.content {
				t.Errorf("the object was changed to %q", content)
			}
		})
	}
}

// TestRestartWithAnotherConfiguration restarts with another configuration than the
// configuration with which the changes were stored.
func TestRestartWithAnotherConfiguration(t *testing.T) {
	t.Run("static groups are dropped", func(t *testing.T) {
		store := newStorage(t)
		s := open(t, store)
		before := *upsert(t, s, main, Change{Size: 8})
		s = openWith(t, store, newConfigWith(nil))
		// A group that an operator has changed becomes dynamic and keeps its
		// settings.
		wantDynamic(t, s, before)
		// Without a change the group is not stored.
		if group, found := s.Get(plain); found {
			t.Errorf("still exists: %+v", group)
		}
	})
	t.Run("a static group changes before it is dropped", func(t *testing.T) {
		store := newStorage(t)
		upsert(t, open(t, store), plain, Change{Size: 8})
		s := openWith(t, store, newConfigWith(map[string]config.Group{
			"plain": {Template: "arm", Vars: map[string]string{"a": "b"}, Args: map[string]any{"a": "b"}, DrainTimeout: new(time.Duration(0))},
		}))
		before := *get(t, s, plain)
		if before.Template != "arm" || before.Size != 8 {
			t.Errorf("is %+v, want the configured template and the stored size", before)
		}
		s = openWith(t, store, newConfigWith(nil))
		wantDynamic(t, s, before)
	})
	t.Run("a dynamic group becomes static", func(t *testing.T) {
		store := newStorage(t)
		createObject(t, store, `{"default": {"dynamic": {"template": "unknown", "size": 8, "subnet_pools": ["unknown"]}}}`)
		s := openWith(t, store, newConfigWith(map[string]config.Group{"dynamic": {Template: "arm", Size: new(int32(1))}}))
		group := get(t, s, dynamic)
		if !group.Static || group.Template != "arm" || group.Size != 8 || !cmp.Equal(group.SubnetPools, []string{"closed"}) {
			t.Errorf("is %+v, want the configured template and pool, and the stored size", group)
		}
	})
	t.Run("a pool is no longer for dynamic groups", func(t *testing.T) {
		store := newStorage(t)
		createObject(t, store, `{"default": {"dynamic": {"template": "worker", "size": 1, "subnet_pools": ["closed"]}}}`)
		s := open(t, store)
		if size := upsert(t, s, dynamic, Change{Size: 5}).Size; size != 5 {
			t.Errorf("the size is %d, want 5", size)
		}
	})
	t.Run("settings that operators cannot set are kept", func(t *testing.T) {
		store := newStorage(t)
		s := open(t, store)
		upsert(t, s, main, Change{Size: 8})
		upsert(t, s, plain, Change{Size: 8})
		next := newConfigWith(nil)
		next.Shard.DefaultDrainTimeout = time.Hour
		next.Defaults.Args = map[string]any{"labels": map[string]any{"own": "no", "region": "east"}}
		s = openWith(t, store, next)
		// The group keeps its own timeout and argument. The other settings
		// follow the configuration.
		group := upsert(t, s, main, Change{Size: 9})
		want := map[string]any{"labels": map[string]any{"own": "yes", "tier": "one", "region": "east"}}
		if diff := cmp.Diff(want, group.Args); diff != "" || group.DrainTimeout != time.Minute {
			t.Errorf("the drain timeout is %s, want %s, and the args (-want +got):\n%s", group.DrainTimeout, time.Minute, diff)
		}
		if timeout := get(t, s, plain).DrainTimeout; timeout != time.Hour {
			t.Errorf("the drain timeout is %s, want that of the shard", timeout)
		}
		if content := string(readObject(t, store).Data); !strings.Contains(content, `"drain_timeout": "1m0s"`) {
			t.Errorf("the drain timeout is not stored as text: %s", content)
		}
		if diff := cmp.Diff(snapshot(t, s), snapshot(t, openWith(t, store, next))); diff != "" {
			t.Errorf("(-before +after a restart):\n%s", diff)
		}
		// Once the group is static again, the stored values have no effect.
		s = openWith(t, store, newConfigWith(map[string]config.Group{"main": {Template: "worker"}}))
		want = map[string]any{"labels": map[string]any{"tier": "one", "region": "west"}}
		group = get(t, s, main)
		if diff := cmp.Diff(want, group.Args); diff != "" || group.DrainTimeout != 5*time.Minute {
			t.Errorf("the drain timeout is %s, want %s, and the args (-want +got):\n%s", group.DrainTimeout, 5*time.Minute, diff)
		}
	})
}

// A configuration may be in force before it is stored as accepted. Meanwhile operators
// delete groups that only the configuration before it names.
func TestADeletedGroupStaysDeletedWhenAServerStarts(t *testing.T) {
	store := newStorage(t)
	s := open(t, store)
	accepted, next := s.Config(), newConfigWith(nil)
	reconfigure(t, s, next)
	if changed, err := s.Delete(t.Context(), plain, nil); !changed || err != nil {
		t.Fatalf("changed %t, error %v", changed, err)
	}
	s, err := Open(t.Context(), accepted, next, store)
	if err != nil {
		t.Fatal(err)
	}
	if group, found := s.Get(plain); found || !s.Deleted(plain) {
		t.Errorf("the group is %+v, want that it stays deleted", group)
	}
	if _, found := s.Get(main); !found {
		t.Error("the group that was not deleted is gone")
	}
}

// Meanwhile operators also resize groups that only the configuration before it names.
func TestAResizedGroupKeepsItsSizeWhenAServerStarts(t *testing.T) {
	store := newStorage(t)
	s := open(t, store)
	accepted, next := s.Config(), newConfigWith(nil)
	reconfigure(t, s, next)
	_, _, err := s.Upsert(t.Context(), plain, Change{Size: 7})
	require.NoError(t, err)
	s, err = Open(t.Context(), accepted, next, store)
	require.NoError(t, err)
	assert.Equal(t, int32(7), get(t, s, plain).Size)
}
