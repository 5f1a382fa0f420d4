// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/storage"
)

// wantDynamic expects that a group is dynamic and otherwise as before.
func wantDynamic(t *testing.T, s *Store, before Group) {
	t.Helper()
	before.Static, before.MinSize = false, 0
	assert.Empty(t, cmp.Diff(&before, get(t, s, before.Key), cmpopts.IgnoreFields(Group{}, "ETag", "OperatorVars")), "%s (-before +after)", before.Key)
}

func reconfigure(t *testing.T, s *Store, next *config.Config) {
	t.Helper()
	require.NoError(t, s.Reconfigure(t.Context(), next))
	assert.Same(t, next, s.Config(), "another configuration is active")
}

// wantSame expects that a start with the current configuration finds the groups
// of s.
func wantSame(t *testing.T, s *Store, store storage.Store) {
	t.Helper()
	after, err := Open(t.Context(), nil, s.Config(), store)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(snapshot(t, s), snapshot(t, after)), "(-before +after a restart)")
}

func TestReconfigure(t *testing.T) {
	t.Run("static groups that are dropped become dynamic", func(t *testing.T) {
		store := newStorage(t)
		s := open(t, store)
		upsert(t, s, main, Change{Size: 8, Settings: Settings{InstanceType: "r7i.large", Vars: map[string]string{"x": "y"}}})
		before, untouched := *get(t, s, main), *get(t, s, plain)
		reconfigure(t, s, newConfigWith(nil))
		wantDynamic(t, s, before)
		wantDynamic(t, s, untouched)
		wantSame(t, s, store)

		// Operators own the groups now: they can change and delete them. The
		// groups may keep their pool, although dynamic groups may not use it.
		if size := upsert(t, s, main, Change{Size: 9}).Size; size != 9 {
			t.Errorf("the size is %d, want 9", size)
		}
		if got := upsert(t, s, main, Change{Settings: Settings{Template: "bare", SubnetPools: []string{"other"}}}); got.Template != "bare" || got.SubnetPools[0] != "other" {
			t.Errorf("is %+v", got)
		}
		if changed, err := s.Delete(t.Context(), plain, nil); !changed || err != nil {
			t.Errorf("Delete returns %t, %v", changed, err)
		}
		if group, found := s.Get(plain); found {
			t.Errorf("still exists: %+v", group)
		}
		wantSame(t, s, store)
	})
	t.Run("a dynamic group becomes static, and dynamic again", func(t *testing.T) {
		store := newStorage(t)
		s := open(t, store)
		upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker", SubnetPools: []string{"other"}}, Size: 8})
		reconfigure(t, s, newConfigWith(map[string]config.Group{
			"dynamic": {Template: "bare", Size: new(int32(1)), InstanceType: "t3.large", SubnetPool: "closed", Args: map[string]any{"a": "b"}, DrainTimeout: new(time.Hour)},
		}))
		group := *get(t, s, dynamic)
		if !group.Static || group.Template != "bare" || group.Size != 8 || !cmp.Equal(group.SubnetPools, []string{"closed"}) {
			t.Errorf("is %+v, want the configured template and pool, and the stored size", group)
		}
		wantSame(t, s, store)
		reconfigure(t, s, newConfigWith(nil))
		wantDynamic(t, s, group)
		wantSame(t, s, store)
	})
	t.Run("a static group is added, changes, and keeps the changes of operators", func(t *testing.T) {
		store := newStorage(t)
		s := openWith(t, store, newConfigWith(nil))
		reconfigure(t, s, newConfigWith(map[string]config.Group{"main": {Template: "worker", Size: new(int32(1))}}))
		if group := get(t, s, main); !group.Static || group.Size != 1 {
			t.Errorf("is %+v", group)
		}
		reconfigure(t, s, newConfigWith(map[string]config.Group{"main": {Template: "worker", Size: new(int32(2))}}))
		if size := get(t, s, main).Size; size != 2 {
			t.Errorf("the size is %d, want 2", size)
		}
		if object := readObject(t, store); object.ETag != "" {
			t.Errorf("what the configuration says was stored: %s", object.Data)
		}
		upsert(t, s, main, Change{Size: 5})
		reconfigure(t, s, newConfigWith(map[string]config.Group{"main": {Template: "arm", Size: new(int32(3))}}))
		if group := get(t, s, main); group.Size != 5 || group.InstanceType != "m7g.large" {
			t.Errorf("is %+v, want the new template and the operator's size", group)
		}
		wantSame(t, s, store)
		_, err := s.Delete(t.Context(), main, nil)
		require.NoError(t, err)
		if size := get(t, s, main).Size; size != 3 {
			t.Errorf("the size is %d, want 3", size)
		}
	})
	t.Run("settings that a group does not set follow the template", func(t *testing.T) {
		store := newStorage(t)
		s := open(t, store)
		upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 1})
		next := newConfig()
		worker := next.Templates["worker"]
		worker.InstanceType, worker.Vars = "c7i.large", map[string]string{"role": "other"}
		next.Templates["worker"] = worker
		before := get(t, s, dynamic)
		reconfigure(t, s, next)
		after := get(t, s, dynamic)
		if after.InstanceType != "c7i.large" || after.Type.Name != "c7i.large" || after.Vars["role"] != "other" || after.ETag == before.ETag {
			t.Errorf("from %+v to %+v", before, after)
		}
	})
	t.Run("nothing is written when nothing differs", func(t *testing.T) {
		store := newFaultyStore(t)
		s := open(t, store)
		upsert(t, s, main, Change{Size: 8})
		upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}})
		before := store.writes
		reconfigure(t, s, newConfig())
		wantSame(t, s, store)
		if writes := store.writes - before; writes != 0 {
			t.Errorf("there were %d writes", writes)
		}
	})
}

func TestReconfigureRejects(t *testing.T) {
	tests := []struct {
		name   string
		change func(*config.Config)
		want   []string
	}{
		{"the template of a dynamic group is removed", func(c *config.Config) { delete(c.Templates, "bare") }, []string{`default.dynamic.template: Invalid value: "bare": unknown template, known are "arm", "worker"`}},
		{"the pool of a dynamic group is removed", func(c *config.Config) { delete(c.Shard.SubnetPools, "other") }, []string{`default.dynamic.subnet_pools[0]: Invalid value: "other": unknown subnet pool`}},
		{"the instance type of a dynamic group is removed", func(c *config.Config) { delete(c.Shard.Infra.InstanceTypes, "t3.large") }, []string{`default.dynamic.instance_type: Invalid value: "t3.large"`}},
		{"an instance type that an operator gave a static group is removed", func(c *config.Config) { delete(c.Shard.Infra.InstanceTypes, "r7i.large") }, []string{`default.main.instance_type: Invalid value: "r7i.large"`}},
		{
			"a static group is removed with its template", func(c *config.Config) {
				c.Groups = nil
				delete(c.Templates, "worker")
			},
			[]string{`default.main.template: Invalid value: "worker": unknown template`, `default.plain.template: Invalid value: "worker": unknown template`},
		},
		{
			"what needs a restart, with all else that is wrong", func(c *config.Config) {
				c.Shard.ID = "b"
				delete(c.Templates, "bare")
			},
			[]string{`shard.id: Invalid value: "b": needs a restart of the server, which runs with "us-west-2a"`, `default.dynamic.template: Invalid value: "bare"`},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			store := newStorage(t)
			s := open(t, store)
			upsert(t, s, dynamic, Change{Settings: Settings{Template: "bare", InstanceType: "t3.large", SubnetPools: []string{"other"}}, Size: 1})
			upsert(t, s, main, Change{Size: 5, Settings: Settings{InstanceType: "r7i.large"}})
			inForce, before, object := s.Config(), snapshot(t, s), readObject(t, store)

			next := newConfig()
			tc.change(next)
			err := s.Reconfigure(t.Context(), next)
			if _, ok := errors.AsType[*config.InvalidError](err); !ok {
				t.Fatalf("got error %T: %v", err, err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got  %v\nwant %s", err, want)
				}
			}
			if got := strings.Count(err.Error(), " value: "); got != len(tc.want) {
				t.Errorf("there are %d mistakes, want %d: %v", got, len(tc.want), err)
			}
			wantNothingChanged(t, s, inForce, store, object)
			if diff := cmp.Diff(before, snapshot(t, s)); diff != "" {
				t.Errorf("groups (-before +after):\n%s", diff)
			}
		})
	}
}

func wantNothingChanged(t *testing.T, s *Store, inForce *config.Config, store storage.Store, object storage.Object) {
	t.Helper()
	assert.Same(t, inForce, s.Config(), "another configuration is active")
	assert.Empty(t, cmp.Diff(object, readObject(t, store)), "the object has changed (-before +after)")
}

func TestReconfigureWithAFailedWrite(t *testing.T) {
	full := errors.New("disk full")
	store := newFaultyStore(t)
	s := open(t, store)
	upsert(t, s, main, Change{Size: 5})
	inForce, before, object := s.Config(), snapshot(t, s), readObject(t, store)
	store.before = []error{full}
	err := s.Reconfigure(t.Context(), newConfigWith(nil))
	if _, invalid := errors.AsType[*config.InvalidError](err); !errors.Is(err, full) || invalid {
		t.Errorf("got %T %v, want an error of the storage", err, err)
	}
	wantNothingChanged(t, s, inForce, store, object)
	if diff := cmp.Diff(before, snapshot(t, s)); diff != "" {
		t.Errorf("groups (-before +after):\n%s", diff)
	}
	reconfigure(t, s, newConfigWith(nil))
	wantSame(t, s, store)
}

// TestReconfigureIsAtomic reads a store while two configurations alternate and
// operators change groups. All groups must belong to the same configuration,
// and no change of an operator may be lost.
func TestReconfigureIsAtomic(t *testing.T) {
	store := newStorage(t)
	groupsOf := func(template string) *config.Config {
		return newConfigWith(map[string]config.Group{"main": {Template: template}, "plain": {Template: template}})
	}
	worker, arm := groupsOf("worker"), groupsOf("arm")
	s := openWith(t, store, worker)
	const turns = 25
	var changing sync.WaitGroup
	changing.Go(func() {
		for range turns {
			reconfigure(t, s, arm)
			reconfigure(t, s, worker)
		}
	})
	changing.Go(func() {
		for n := range int32(turns) {
			size := n + 1
			upsert(t, s, main, Change{Size: size})
			upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: size})
		}
	})
	changed := make(chan struct{})
	go func() {
		changing.Wait()
		close(changed)
	}()
	for done := false; !done; {
		select {
		case <-changed:
			done = true
		default:
		}
		s.mu.RLock()
		first, second, named := s.groups[main].Template, s.groups[plain].Template, s.config.Groups["default"]["main"].Template
		s.mu.RUnlock()
		if first != second || first != named {
			t.Fatalf("one group is of %s, the other of %s, and the configuration says %s", first, second, named)
		}
	}
	if first, second := get(t, s, main).Size, get(t, s, dynamic).Size; first != turns || second != turns {
		t.Errorf("the sizes are %d and %d, want %d", first, second, turns)
	}
	wantSame(t, s, store)
}
