// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

// TestUpsertRejects covers the two kinds of rejection. Each names the group,
// the field, its value and the allowed values, and leaves the storage
// unchanged.
func TestUpsertRejects(t *testing.T) {
	invalid, restricted := new(*InvalidError), new(*RestrictedError)
	tests := []struct {
		name   string
		key    instance.GroupKey
		change Change
		kind   any
		want   string
	}{
		{"empty key", instance.GroupKey{Tenant: "default"}, Change{Settings: Settings{Template: "worker"}}, invalid, `key: Invalid value: "": must not be empty`},
		{"malformed key", instance.GroupKey{Tenant: "default", Group: "a--b"}, Change{Settings: Settings{Template: "worker"}}, invalid, `key: Invalid value: "a--b"`},
		{"malformed tenant", instance.GroupKey{Tenant: "A", Group: "a"}, Change{Settings: Settings{Template: "worker"}}, invalid, `tenant: Invalid value: "A"`},
		{"new group without a template", dynamic, Change{Size: 1}, invalid, `config.template: Required value: must name a template: "arm", "bare", "worker"`},
		{"unknown template", dynamic, Change{Settings: Settings{Template: "knz"}}, invalid, `config.template: Invalid value: "knz": unknown template, known are "arm", "bare", "worker"`},
		{"negative size", dynamic, Change{Settings: Settings{Template: "worker"}, Size: -1}, invalid, `config.size: Invalid value: -1: must not be negative`},
		{"negative size of a static group", main, Change{Size: -1}, invalid, `config.size: Invalid value: -1: must not be negative`},
		{"largest size", dynamic, Change{Settings: Settings{Template: "worker"}, Size: 10001}, invalid, `config.size: Invalid value: 10001: must be at most 10000`},
		{"too many vars", dynamic, Change{Settings: Settings{Template: "worker", Vars: manyVars(65)}}, invalid, `config.vars: Too many: 65: must have at most 64 items`},
		{"value too long", dynamic, Change{Settings: Settings{Template: "worker", Vars: map[string]string{"a": strings.Repeat("b", 4097)}}}, invalid, `config.vars[a]: Too long: may not be more than 4096 bytes`},
		{"unknown instance type", dynamic, Change{Settings: Settings{Template: "worker", InstanceType: "huge"}}, invalid, `config.instance_type: Invalid value: "huge": no instance type of architecture "amd64", known are "c7i.large", "m7i.large"`},
		{"instance type of another architecture", main, Change{Settings: Settings{InstanceType: "m7g.large"}}, invalid, `config.instance_type: Invalid value: "m7g.large": no instance type of architecture "amd64", known are "c7i.large", "m7i.large"`},
		{"no instance type at all", dynamic, Change{Settings: Settings{Template: "bare", SubnetPools: []string{"open"}}}, invalid, `config.instance_type: Invalid value: "": no instance type of architecture "amd64"`},
		{"no pool at all", dynamic, Change{Settings: Settings{Template: "bare", InstanceType: "m7i.large"}}, invalid, `config.subnets: Required value: template "bare" has no subnet pool`},
		{"unknown pool", dynamic, Change{Settings: Settings{Template: "worker", SubnetPools: []string{"open", "none"}}}, invalid, `config.subnets[1]: Invalid value: "none": unknown subnet pool, known are "closed", "open", "other"`},
		{"pool given twice", dynamic, Change{Settings: Settings{Template: "worker", SubnetPools: []string{"open", "open"}}}, invalid, `config.subnets[1]: Duplicate value: "open"`},
		{"pool that dynamic groups may not use", dynamic, Change{Settings: Settings{Template: "worker", SubnetPools: []string{"closed"}}}, invalid, `config.subnets[0]: Unsupported value: "closed": supported values: "open", "other"`},
		{"template whose pool dynamic groups may not use", dynamic, Change{Settings: Settings{Template: "arm"}}, invalid, `config.subnets[0]: Unsupported value: "closed": supported values: "open", "other"`},
		{"args of a dynamic group", dynamic, Change{Settings: Settings{Template: "worker"}, Args: map[string]string{"a": "b"}}, invalid, `config.args: Forbidden: provider fake takes none from operators, only from the server configuration`},
		{"another template of a static group", main, Change{Settings: Settings{Template: "arm"}, Size: 4}, restricted, `config.template: Forbidden: "arm" is set by the server configuration, which allows only "worker"`},
		{"an unknown template of a static group", main, Change{Settings: Settings{Template: "knz"}, Size: 4}, restricted, `config.template: Forbidden: "knz" is set by the server configuration, which allows only "worker"`},
		{"other pools of a static group", main, Change{Settings: Settings{SubnetPools: []string{"open"}}, Size: 4}, restricted, `config.subnets: Forbidden: ["open"] is set by the server configuration, which allows only ["closed"]`},
		{"more pools of a static group", main, Change{Settings: Settings{SubnetPools: []string{"closed", "open"}}, Size: 4}, restricted, `config.subnets: Forbidden: ["closed" "open"] is set by the server configuration, which allows only ["closed"]`},
		{"args of a static group", main, Change{Args: map[string]string{"a": "b"}, Size: 4}, restricted, `config.args: Forbidden: a static group takes none`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			store := newStorage(t)
			s := open(t, store)
			upsert(t, s, main, Change{Size: 4})
			upsert(t, s, instance.GroupKey{Tenant: "default", Group: "other"}, Change{Settings: Settings{Template: "worker"}})
			object, before := readObject(t, store), snapshot(t, s)

			group, changed, err := s.Upsert(t.Context(), tc.key, tc.change)
			if group != nil || changed || err == nil {
				t.Fatalf("got %+v, changed %t, error %v", group, changed, err)
			}
			if !errors.As(err, tc.kind) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.key.String()) {
				t.Errorf("got  %T %s\nwant %T %s", err, err, tc.kind, tc.want)
			}
			if diff := cmp.Diff(object, readObject(t, store)); diff != "" {
				t.Errorf("the storage has changed (-before +after):\n%s", diff)
			}
			if diff := cmp.Diff(before, snapshot(t, s)); diff != "" {
				t.Errorf("a rejected change is visible (-before +after):\n%s", diff)
			}
		})
	}
}

func TestUpsertReportsAllErrorsTogether(t *testing.T) {
	s := open(t, newStorage(t))
	_, _, err := s.Upsert(t.Context(), dynamic, Change{Settings: Settings{Template: "worker", InstanceType: "huge", SubnetPools: []string{"none"}}, Size: -1})
	for _, want := range []string{"config.size", "config.instance_type", "config.subnets[0]"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func manyVars(count int) map[string]string {
	vars := map[string]string{}
	for n := range count {
		vars[fmt.Sprint("v", n)] = "x"
	}
	return vars
}

// TestMaxSize: the size of a group is limited by the group, else by the shard. A size that
// was set before may be lowered to a size above the limit, but not raised.
func TestMaxSize(t *testing.T) {
	store := newStorage(t)
	upsert(t, open(t, store), main, Change{Size: 50})
	c := newConfigWith(map[string]config.Group{"main": {Template: "worker", Limits: config.Limits{MaxSize: new(int32(20))}}, "plain": {Template: "worker"}})
	c.Shard.MaxSize = 30
	s := openWith(t, store, c)
	require.EqualValues(t, 50, get(t, s, main).Size)
	upsert(t, s, main, Change{Size: 40})
	upsert(t, s, plain, Change{Size: 30})
	for key, want := range map[instance.GroupKey]string{main: "at most 20", plain: "at most 30"} {
		_, _, err := s.Upsert(t.Context(), key, Change{Size: 41})
		require.ErrorAs(t, err, new(*InvalidError))
		require.ErrorContains(t, err, want)
	}
}

// TestMinSize: the size of a static group does not fall below the limit of the configuration,
// whoever sets it and whenever it was set.
func TestMinSize(t *testing.T) {
	store := newStorage(t)
	upsert(t, open(t, store), main, Change{Size: 2})
	s := openWith(t, store, newConfigWith(map[string]config.Group{
		"main":  {Template: "worker", Size: new(int32(5)), Limits: config.Limits{MinSize: new(int32(3))}},
		"plain": {Template: "worker", Size: new(int32(5))},
		"off":   {Template: "worker", Size: new(int32(5)), Limits: config.Limits{MinSize: new(int32(0))}},
	}))
	require.EqualValues(t, 3, get(t, s, main).Size, "a size that was stored before the limit was raised")
	off := instance.GroupKey{Tenant: main.Tenant, Group: "off"}
	for key, want := range map[instance.GroupKey]int32{main: 3, plain: 1} {
		upsert(t, s, key, Change{Size: want})
		_, _, err := s.Upsert(t.Context(), key, Change{Size: want - 1})
		require.ErrorAs(t, err, new(*InvalidError))
		require.ErrorContains(t, err, fmt.Sprintf("config.size: Invalid value: %d: must be at least %d (limits.min_size of the static group)", want-1, want))
		require.Equal(t, want, get(t, s, key).Size)
		require.Equal(t, want, get(t, s, key).MinSize)
	}
	upsert(t, s, off, Change{Size: 0})
	upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 0})
}

// TestStoredHugeSize is limited: a server that refused to start would not help.
func TestStoredHugeSize(t *testing.T) {
	store := newStorage(t)
	createObject(t, store, `{"default": {"dynamic": {"template": "worker", "size": 2147483647}}}`)
	require.EqualValues(t, config.MaxSize, get(t, open(t, store), dynamic).Size)
}

// TestGroupsOfATenant are limited. Groups that exist can be changed.
func TestGroupsOfATenant(t *testing.T) {
	store := newStorage(t)
	groups := map[string]any{}
	for n := range maxGroups {
		groups[fmt.Sprint("g", n)] = map[string]any{"template": "worker", "size": 0}
	}
	object, err := json.Marshal(map[string]any{"default": groups})
	require.NoError(t, err)
	createObject(t, store, string(object))
	s := open(t, store)
	_, _, err = s.Upsert(t.Context(), dynamic, Change{Settings: Settings{Template: "worker"}})
	require.ErrorAs(t, err, new(*InvalidError))
	require.ErrorContains(t, err, "1000 groups")
	upsert(t, s, instance.GroupKey{Tenant: "default", Group: "g1"}, Change{Size: 2})
	upsert(t, s, instance.GroupKey{Tenant: "other", Group: "dynamic"}, Change{Settings: Settings{Template: "worker"}})
}

// large returns vars that need more than a number of bytes, within the limits of a group.
func large(bytes int) map[string]string {
	vars := map[string]string{}
	for n := 0; n*maxVarSize < bytes; n++ {
		vars[fmt.Sprint("v", n)] = strings.Repeat("v", maxVarSize)
	}
	return vars
}

// All groups of a tenant share a limit, because one object has them, and every change writes it.
func TestSizeOfTheGroupsOfATenant(t *testing.T) {
	s := open(t, newStorage(t))
	group := func(tenant string, n int) instance.GroupKey {
		return instance.GroupKey{Tenant: tenant, Group: fmt.Sprint("g", n)}
	}
	vars := large(240 << 10)
	for n := range 4 {
		upsert(t, s, group("default", n), Change{Settings: Settings{Template: "worker", Vars: vars}})
	}
	wantTooLarge := func(change Change, n int) {
		t.Helper()
		before, _ := s.Get(group("default", n))
		_, _, err := s.Upsert(t.Context(), group("default", n), change)
		require.ErrorAs(t, err, new(*InvalidError))
		require.ErrorContains(t, err, "config: Forbidden: the groups of the tenant that operators have changed would have settings of ")
		require.ErrorContains(t, err, "at most 1048576 are allowed")
		after, _ := s.Get(group("default", n))
		assert.Equal(t, before, after, "the group was changed")
	}
	wantTooLarge(Change{Settings: Settings{Template: "worker", Vars: vars}}, 4)
	ids := make([]string, maxIDs)
	for n := range ids {
		ids[n] = fmt.Sprint("an-id-that-has-the-length-of-any-", n)
	}
	wantTooLarge(Change{RemoveFirst: ids}, 3)
	// A var that is sent is stored twice, because it is declared too.
	wantTooLarge(Change{Settings: Settings{Vars: vars}, Declarative: true}, 3)
	upsert(t, s, group("default", 4), Change{Settings: Settings{Template: "worker"}})
	upsert(t, s, group("other", 4), Change{Settings: Settings{Template: "worker", Vars: vars}})
}

// Requests that one write stores do not exceed the limit together.
func TestSizeOfTheGroupsInABatch(t *testing.T) {
	store := newFaultyStore(t)
	s := open(t, store)
	const count = 10
	s.writeMu.Lock()
	errs := make([]error, count)
	var running sync.WaitGroup
	for n := range count {
		running.Go(func() {
			_, _, errs[n] = s.Upsert(t.Context(), instance.GroupKey{Tenant: "default", Group: fmt.Sprint("g", n)},
				Change{Settings: Settings{Template: "worker", Vars: large(240 << 10)}})
		})
	}
	require.Eventually(t, func() bool {
		s.batchMu.Lock()
		defer s.batchMu.Unlock()
		return s.batch != nil && len(s.batch.requests) == count
	}, time.Minute, time.Millisecond)
	s.writeMu.Unlock()
	running.Wait()
	assert.Equal(t, 1, store.writes)
	refused := 0
	for _, err := range errs {
		if err != nil {
			require.ErrorAs(t, err, new(*InvalidError))
			refused++
		}
	}
	assert.Equal(t, count-4, refused)
}

// A tenant with more than the limit, from before there was a limit, can scale its groups and
// make them smaller.
func TestGroupsThatWereTooLargeBefore(t *testing.T) {
	store := newStorage(t)
	groups := map[string]any{}
	for n := range 6 {
		groups[fmt.Sprint("g", n)] = map[string]any{"template": "worker", "size": 9, "vars": large(240 << 10), "remove_first": []string{"a"}}
	}
	object, err := json.Marshal(map[string]any{"default": groups})
	require.NoError(t, err)
	createObject(t, store, string(object))
	s := open(t, store)
	key := instance.GroupKey{Tenant: "default", Group: "g1"}
	upsert(t, s, key, Change{Size: 10, RemoveFirst: []string{"b"}, Revision: &Revision{UID: "u", Generation: 7}})
	upsert(t, s, key, Change{Size: 8})
	_, _, err = s.Upsert(t.Context(), key, Change{Size: 8, Settings: Settings{Vars: map[string]string{"another": "value"}}})
	require.ErrorContains(t, err, "at most 1048576 are allowed")
}

// wantFirst expects the size of a group and the ids in remove_first.
func wantFirst(t *testing.T, group *Group, size int32, ids ...string) {
	t.Helper()
	if group.Size != size || !slices.Equal(group.RemoveFirst, ids) {
		t.Errorf("%s has size %d, and remove_first %q, want %d and %q", group.Key, group.Size, group.RemoveFirst, size, ids)
	}
}

// TestRemoveFirstBelongsToTheSize checks that every change of the size replaces
// remove_first, even by nothing, in the same write.
func TestRemoveFirstBelongsToTheSize(t *testing.T) {
	store := newFaultyStore(t)
	s := open(t, store)
	steps := []struct {
		name    string
		change  Change
		want    []string
		writes  int
		changes bool
	}{
		{"a new group", Change{Settings: Settings{Template: "worker"}, Size: 3}, nil, 1, true},
		{"a smaller size and two ids", Change{Size: 1, RemoveFirst: []string{"b", "a"}}, []string{"b", "a"}, 1, true},
		{"the same again", Change{Size: 1, RemoveFirst: []string{"b", "a"}}, []string{"b", "a"}, 0, false},
		{"other ids with the same size", Change{Size: 1, RemoveFirst: []string{"a", "c"}}, []string{"a", "c"}, 1, true},
		{"in another order", Change{Size: 1, RemoveFirst: []string{"c", "a"}}, []string{"c", "a"}, 1, true},
		{"an operator that does not send the field", Change{Size: 1}, nil, 1, true},
		{"an empty list, which equals no field", Change{Size: 1, RemoveFirst: []string{}}, nil, 0, false},
	}
	for _, step := range steps {
		before := store.writes
		group, changed, err := s.Upsert(t.Context(), dynamic, step.change)
		require.NoError(t, err)
		wantFirst(t, group, step.change.Size, step.want...)
		if writes := store.writes - before; writes != step.writes || changed != step.changes {
			t.Errorf("%s: %d writes and changed %t, want %d and %t", step.name, writes, changed, step.writes, step.changes)
		}
		wantSame(t, s, store)
	}
	// Older servers must be able to read the object.
	if content := string(readObject(t, store).Data); strings.Contains(content, "remove_first") {
		t.Errorf("stored is %s", content)
	}
}

// Instances to replace belong to their request, as deletion candidates do.
func TestReplaceBelongsToTheRequest(t *testing.T) {
	store := newFaultyStore(t)
	s := open(t, store)
	steps := []struct {
		name   string
		change Change
		writes int
	}{
		{"a new group", Change{Settings: Settings{Template: "worker"}, Size: 3, Replace: []string{"a"}}, 1},
		{"the same", Change{Size: 3, Replace: []string{"a"}}, 0},
		{"another instance", Change{Size: 3, Replace: []string{"b"}}, 1},
		{"none", Change{Size: 3}, 1},
	}
	for _, step := range steps {
		before := store.writes
		group, changed, err := s.Upsert(t.Context(), dynamic, step.change)
		require.NoError(t, err)
		assert.Equal(t, step.change.Replace, group.Replace, step.name)
		assert.Equal(t, step.writes, store.writes-before, step.name)
		assert.Equal(t, step.writes > 0, changed, step.name)
		wantSame(t, s, store)
	}
	// Older servers must be able to read the object.
	assert.NotContains(t, string(readObject(t, store).Data), "replace")
	for _, ids := range [][]string{{""}, {"a", "a"}, {strings.Repeat("a", 65)}} {
		_, _, err := s.Upsert(t.Context(), dynamic, Change{Size: 3, Replace: ids})
		require.ErrorContains(t, err, "replace[")
	}
}

// A grant belongs to its request, as deletion candidates do, and survives a restart, a
// configuration that makes the group dynamic, and nothing else.
func TestGrantBelongsToTheRequest(t *testing.T) {
	store := newFaultyStore(t)
	s := open(t, store)
	end := time.Date(2026, 3, 1, 4, 0, 0, 0, time.UTC)
	grant := &RotationGrant{MaxSurge: 0, MaxUnavailable: 2, UpToDate: 0, NotAfter: &end, After: &end, MaxAgeSeconds: 3600, Target: "t"}
	steps := []struct {
		name   string
		change Change
		writes int
	}{
		{"a new group without a grant", Change{Settings: Settings{Template: "worker"}, Size: 3}, 1},
		{"a grant", Change{Size: 3, Rotation: grant}, 1},
		{"an equal grant", Change{Size: 3, Rotation: new(*grant)}, 0},
		{"another grant", Change{Size: 3, Rotation: &RotationGrant{MaxSurge: 1}}, 1},
		{"an operator that does not send the field", Change{Size: 3}, 1},
	}
	for _, step := range steps {
		before, hash := store.writes, ""
		if group, found := s.Get(dynamic); found {
			hash = group.InfraConfigHash
		}
		group, changed, err := s.Upsert(t.Context(), dynamic, step.change)
		require.NoError(t, err)
		assert.Equal(t, step.change.Rotation, group.Rotation, step.name)
		assert.Equal(t, step.writes, store.writes-before, step.name)
		assert.Equal(t, step.writes > 0, changed, step.name)
		if hash != "" {
			assert.Equal(t, hash, group.InfraConfigHash, step.name)
		}
		wantSame(t, s, store)
	}
	// Older servers must be able to read the object.
	assert.NotContains(t, string(readObject(t, store).Data), "rotation")

	upsert(t, s, plain, Change{Size: 1, Rotation: grant})
	s = openWith(t, store, newConfigWith(nil))
	assert.Equal(t, grant, get(t, s, plain).Rotation)
	_, _, err := s.Upsert(t.Context(), plain, Change{Size: 1, Rotation: &RotationGrant{MaxUnavailable: -1}})
	require.ErrorContains(t, err, "rotation.max_unavailable: Invalid value: -1: must not be negative")
}

// TestETagsAreStable checks that a new release does not change the etags of
// unchanged groups.
func TestETagsAreStable(t *testing.T) {
	group := withHashes(t, sample())
	if want := "f6a1ac75"; !strings.HasPrefix(group.ETag, want) {
		t.Errorf("the ETag of a group that names none is %s, want %s...", group.ETag, want)
	}
	named := sample()
	named.RemoveFirst = []string{"a"}
	if withHashes(t, named).ETag == group.ETag {
		t.Error("the ETag does not differ")
	}
	declared := sample()
	declared.Declared = &Settings{Template: "worker"}
	if withHashes(t, declared).ETag == group.ETag {
		t.Error("the ETag of a group with a declaration does not differ")
	}
}

func TestRemoveFirstOfAStaticGroup(t *testing.T) {
	store := newStorage(t)
	s := open(t, store)
	configured := get(t, s, main).ETag
	wantFirst(t, upsert(t, s, main, Change{Size: 2, RemoveFirst: []string{"a"}}), 2, "a")
	upsert(t, s, plain, Change{Size: 1, RemoveFirst: []string{"b"}})
	wantSame(t, s, store)

	// The group keeps its settings when the configuration drops it, whether the
	// server runs or not, and when it becomes static again.
	reconfigure(t, s, newConfigWith(map[string]config.Group{"plain": {Template: "worker"}}))
	wantFirst(t, get(t, s, main), 2, "a")
	wantSame(t, s, store)
	s = openWith(t, store, newConfigWith(nil))
	wantFirst(t, get(t, s, plain), 1, "b")
	s = open(t, store)
	wantFirst(t, get(t, s, main), 2, "a")
	wantFirst(t, get(t, s, plain), 1, "b")

	// The configuration sets no ids.
	_, err := s.Delete(t.Context(), main, nil)
	require.NoError(t, err)
	wantFirst(t, get(t, s, main), 3)
	if etag := get(t, s, main).ETag; etag != configured {
		t.Errorf("the ETag is %s, want the previous one, %s", etag, configured)
	}
	wantSame(t, s, store)
}

// TestDeletedGroupLosesRemoveFirst checks that a group that is created again
// starts without ids.
func TestDeletedGroupLosesRemoveFirst(t *testing.T) {
	s := open(t, newStorage(t))
	upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 2, RemoveFirst: []string{"a"}})
	_, err := s.Delete(t.Context(), dynamic, nil)
	require.NoError(t, err)
	wantFirst(t, upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 2}), 2)
}

func TestInvalidRemoveFirst(t *testing.T) {
	many := make([]string, maxIDs+1)
	for n := range many {
		many[n] = fmt.Sprintf("knd%026d", n)
	}
	tests := []struct {
		name string
		ids  []string
		want string
	}{
		{"an empty id", []string{"a", ""}, `remove_first[1]: Required value: must be the id of an instance`},
		{"an id that is too long", []string{strings.Repeat("a", 65)}, `remove_first[0]: Invalid value: "` + strings.Repeat("a", 64) + `...": must have at most 64 characters`},
		{"an id given twice", []string{"a", "b", "a"}, `remove_first[2]: Duplicate value: "a"`},
		{"too many", many, `remove_first: Too many: 10001: must have at most 10000 items`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			store := newStorage(t)
			s := open(t, store)
			upsert(t, s, main, Change{Size: 4})
			before, object := snapshot(t, s), readObject(t, store)
			_, changed, err := s.Upsert(t.Context(), main, Change{Size: 1, RemoveFirst: tc.ids})
			if _, invalid := errors.AsType[*InvalidError](err); !invalid || changed || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
			// The size has not changed either.
			if diff := cmp.Diff(before, snapshot(t, s)); diff != "" || !cmp.Equal(object, readObject(t, store)) {
				t.Errorf("a rejected change is visible (-before +after):\n%s", diff)
			}
		})
	}
	s := open(t, newStorage(t))
	upsert(t, s, main, Change{Size: 1, RemoveFirst: many[:maxIDs]})
	upsert(t, s, main, Change{Size: 1, RemoveFirst: []string{strings.Repeat("a", 64)}})
}
