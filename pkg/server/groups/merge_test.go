// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"nstance.dev/operator/pkg/server/instance"
)

// configured and fromTemplate are the static groups before anybody changes them.
func configured() Group {
	return Group{
		Key: main, Template: "worker", Kind: "knd", Size: 3, InstanceType: "c7i.large",
		SubnetPools: []string{"closed"}, Static: true,
		Vars: map[string]string{"role": "main", "tier": "one", "own": "yes"},
	}
}

func fromTemplate(key instance.GroupKey, size int32, static bool) Group {
	return Group{
		Key: key, Template: "worker", Kind: "knd", Size: size, InstanceType: "m7i.large",
		SubnetPools: []string{"open"}, Static: static,
		Vars: map[string]string{"role": "worker", "tier": "one"},
	}
}

// with returns g after change.
func with(g Group, change func(*Group)) Group {
	change(&g)
	return g
}

func TestUpsertMerges(t *testing.T) {
	worker := Change{Template: "worker", Size: 2}
	tests := []struct {
		name    string
		key     instance.GroupKey
		changes []Change
		want    Group
	}{
		{"a static group is as configured, over its template", main, nil, configured()},
		{"a static group that is silent has its template's values", plain, nil, fromTemplate(plain, 2, true)},
		{"a new group has what its template has", dynamic, []Change{worker}, fromTemplate(dynamic, 2, false)},
		{"the size of a new group is not its template's", dynamic, []Change{{Template: "worker"}}, fromTemplate(dynamic, 0, false)},
		{
			"a new group's own values go over its template's", dynamic,
			[]Change{{Template: "worker", Size: 1, InstanceType: "r7i.large", SubnetPools: []string{"other", "open"}, Vars: map[string]string{"tier": "two", "new": "1"}}},
			Group{
				Key: dynamic, Template: "worker", Kind: "knd", Size: 1, InstanceType: "r7i.large",
				SubnetPools: []string{"other", "open"}, Vars: map[string]string{"role": "worker", "tier": "two", "new": "1"},
			},
		},
		{"size replaces, a zero too", dynamic, []Change{{Template: "worker", Size: 5}, {Size: 0}}, fromTemplate(dynamic, 0, false)},
		{
			"what a change does not name stays", dynamic,
			[]Change{{Template: "worker", InstanceType: "r7i.large", SubnetPools: []string{"other"}, Vars: map[string]string{"a": "1"}}, {Size: 7}},
			Group{
				Key: dynamic, Template: "worker", Kind: "knd", Size: 7, InstanceType: "r7i.large",
				SubnetPools: []string{"other"}, Vars: map[string]string{"role": "worker", "tier": "one", "a": "1"},
			},
		},
		{
			"what a change names replaces", dynamic,
			[]Change{{Template: "worker", InstanceType: "r7i.large", SubnetPools: []string{"other"}}, {Template: "bare", InstanceType: "t3.large", SubnetPools: []string{"open"}}},
			Group{Key: dynamic, Template: "bare", Kind: "bar", InstanceType: "t3.large", SubnetPools: []string{"open"}},
		},
		{
			"vars are added key by key", dynamic,
			[]Change{{Template: "worker", Vars: map[string]string{"a": "1", "b": "1"}}, {Vars: map[string]string{"b": "2", "c": "2", "tier": ""}}},
			with(fromTemplate(dynamic, 0, false), func(g *Group) {
				g.Vars = map[string]string{"role": "worker", "tier": "", "a": "1", "b": "2", "c": "2"}
			}),
		},
		{
			"size, instance type and vars of a static group are overridden", main,
			[]Change{{Size: 9, InstanceType: "m7i.xlarge", Vars: map[string]string{"own": "no", "x": "y"}}},
			with(configured(), func(g *Group) {
				g.Size, g.InstanceType = 9, "m7i.xlarge"
				g.Vars = map[string]string{"role": "main", "tier": "one", "own": "no", "x": "y"}
			}),
		},
		{
			"values equal to those configured pass", main,
			[]Change{{Size: 4, Template: "worker", SubnetPools: []string{"closed"}}},
			with(configured(), func(g *Group) { g.Size = 4 }),
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			s := open(t, t.TempDir())
			for _, change := range tc.changes {
				if answer := upsert(t, s, tc.key, change); answer != get(t, s, tc.key) {
					t.Errorf("was answered %+v, but the group is %+v", answer, get(t, s, tc.key))
				}
			}
			got := get(t, s, tc.key)
			if diff := cmp.Diff(&tc.want, got, cmpopts.IgnoreFields(Group{}, "ETag", "Type")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if want := s.Config().Shard.Infra.Kwok.InstanceTypes[tc.want.InstanceType]; got.Type != want || want.Name != tc.want.InstanceType {
				t.Errorf("the type is %+v, want %+v", got.Type, want)
			}
		})
	}
}

func TestUpsertRefuses(t *testing.T) {
	invalid, restricted := new(*InvalidError), new(*RestrictedError)
	tests := []struct {
		name   string
		key    instance.GroupKey
		change Change
		kind   any
		want   string
	}{
		{"empty key", instance.GroupKey{Tenant: "default"}, Change{Template: "worker"}, invalid, `key: Invalid value: "": must not be empty`},
		{"ill-formed key", instance.GroupKey{Tenant: "default", Group: "a--b"}, Change{Template: "worker"}, invalid, `key: Invalid value: "a--b"`},
		{"ill-formed tenant", instance.GroupKey{Tenant: "A", Group: "a"}, Change{Template: "worker"}, invalid, `tenant: Invalid value: "A"`},
		{"new group without a template", dynamic, Change{Size: 1}, invalid, `config.template: Required value: must name a template: "arm", "bare", "worker"`},
		{"unknown template", dynamic, Change{Template: "knz"}, invalid, `config.template: Invalid value: "knz": unknown template, known are "arm", "bare", "worker"`},
		{"negative size", dynamic, Change{Template: "worker", Size: -1}, invalid, `config.size: Invalid value: -1: must not be negative`},
		{"negative size of a static group", main, Change{Size: -1}, invalid, `config.size: Invalid value: -1: must not be negative`},
		{"unknown instance type", dynamic, Change{Template: "worker", InstanceType: "huge"}, invalid, `config.instance_type: Invalid value: "huge": no instance type of architecture "amd64", known are "c7i.2xlarge"`},
		{"instance type of another architecture", main, Change{InstanceType: "m7g.large"}, invalid, `config.instance_type: Invalid value: "m7g.large": no instance type of architecture "amd64"`},
		{"no instance type at all", dynamic, Change{Template: "bare", SubnetPools: []string{"open"}}, invalid, `config.instance_type: Invalid value: "": no instance type of architecture "amd64"`},
		{"no pool at all", dynamic, Change{Template: "bare", InstanceType: "m7i.large"}, invalid, `config.subnets: Required value: template "bare" has no subnet pool`},
		{"unknown pool", dynamic, Change{Template: "worker", SubnetPools: []string{"open", "none"}}, invalid, `config.subnets[1]: Invalid value: "none": unknown subnet pool, known are "closed", "open", "other"`},
		{"pool given twice", dynamic, Change{Template: "worker", SubnetPools: []string{"open", "open"}}, invalid, `config.subnets[1]: Duplicate value: "open"`},
		{"pool that dynamic groups may not use", dynamic, Change{Template: "worker", SubnetPools: []string{"closed"}}, invalid, `config.subnets[0]: Unsupported value: "closed": supported values: "open", "other"`},
		{"template whose pool dynamic groups may not use", dynamic, Change{Template: "arm"}, invalid, `config.subnets[0]: Unsupported value: "closed": supported values: "open", "other"`},
		{"args of a dynamic group", dynamic, Change{Template: "worker", Args: map[string]string{"a": "b"}}, invalid, `config.args: Forbidden: provider kwok takes none`},
		{"another template of a static group", main, Change{Template: "arm"}, restricted, `config.template: Forbidden: "arm" is set by the server configuration, which allows only "worker"`},
		{"an unknown template of a static group", main, Change{Template: "knz"}, restricted, `config.template: Forbidden: "knz" is set`},
		{"other pools of a static group", main, Change{SubnetPools: []string{"open"}}, restricted, `config.subnets: Forbidden: ["open"] is set by the server configuration, which allows only ["closed"]`},
		{"more pools of a static group", main, Change{SubnetPools: []string{"closed", "open"}}, restricted, `config.subnets: Forbidden: ["closed" "open"] is set`},
		{"args of a static group", main, Change{Args: map[string]string{"a": "b"}}, restricted, `config.args: Forbidden: a static group takes none`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			before := s.Keys()
			group, changed, err := s.Upsert(tc.key, tc.change)
			if group != nil || changed || err == nil {
				t.Fatalf("got %+v, changed %t, error %v", group, changed, err)
			}
			if !errors.As(err, tc.kind) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.key.String()) {
				t.Errorf("got  %T %s\nwant %T %s", err, err, tc.kind, tc.want)
			}
			if content := readFile(t, dir); content != "" {
				t.Errorf("a refused change was stored: %s", content)
			}
			if diff := cmp.Diff(before, s.Keys()); diff != "" {
				t.Errorf("a refused change shows (-before +after):\n%s", diff)
			}
		})
	}
}

func TestUpsertReportsAllErrorsTogether(t *testing.T) {
	s := open(t, t.TempDir())
	_, _, err := s.Upsert(dynamic, Change{Template: "worker", Size: -1, InstanceType: "huge", SubnetPools: []string{"none"}})
	for _, want := range []string{"config.size", "config.instance_type", "config.subnets[0]"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func TestDelete(t *testing.T) {
	t.Run("a dynamic group is gone", func(t *testing.T) {
		s := open(t, t.TempDir())
		upsert(t, s, dynamic, Change{Template: "worker", Size: 1})
		if changed, err := s.Delete(dynamic); !changed || err != nil {
			t.Errorf("changed %t, error %v", changed, err)
		}
		if group, found := s.Get(dynamic); found {
			t.Errorf("is still there: %+v", group)
		}
	})
	t.Run("a static group is as configured again", func(t *testing.T) {
		s := open(t, t.TempDir())
		before := get(t, s, main)
		upsert(t, s, main, Change{Size: 8, Vars: map[string]string{"a": "b"}})
		if changed, err := s.Delete(main); !changed || err != nil {
			t.Errorf("changed %t, error %v", changed, err)
		}
		if diff := cmp.Diff(before, get(t, s, main)); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}
	})
	for _, key := range []instance.GroupKey{main, dynamic} {
		t.Run("nothing stored of "+key.String(), func(t *testing.T) {
			dir := t.TempDir()
			if changed, err := open(t, dir).Delete(key); changed || err != nil {
				t.Errorf("changed %t, error %v", changed, err)
			}
			if content := readFile(t, dir); content != "" {
				t.Errorf("was written: %s", content)
			}
		})
	}
	t.Run("an ill-formed key", func(t *testing.T) {
		_, err := open(t, t.TempDir()).Delete(instance.GroupKey{Tenant: "default", Group: "A"})
		if !errors.As(err, new(*InvalidError)) {
			t.Errorf("got %v, want an InvalidError", err)
		}
	})
}

func TestTenantsHaveGroupsOfTheirOwn(t *testing.T) {
	s := open(t, t.TempDir())
	other := instance.GroupKey{Tenant: "other", Group: main.Group}
	if _, _, err := s.Upsert(other, Change{Size: 1}); !errors.As(err, new(*InvalidError)) {
		t.Errorf("%s took its template from %s: error %v", other, main, err)
	}
	before := get(t, s, main)
	if group := upsert(t, s, other, Change{Template: "worker", Size: 1}); group.Static {
		t.Errorf("%s is static since %s is", other, main)
	}
	if get(t, s, main) != before {
		t.Errorf("a change of %s changed %s", other, main)
	}
}

func TestETagFollowsTheGroup(t *testing.T) {
	s := open(t, t.TempDir())
	seen := map[string]int{}
	for i, change := range []Change{
		{Template: "worker"},
		{Size: 1},
		{Size: 1, InstanceType: "t3.large"},
		{Size: 1, SubnetPools: []string{"other"}},
		{Size: 1, SubnetPools: []string{"open", "other"}},
		{Size: 1, Vars: map[string]string{"a": "1"}},
		{Size: 1, Vars: map[string]string{"a": "2"}},
	} {
		etag := upsert(t, s, dynamic, change).ETag
		if before, twice := seen[etag]; twice {
			t.Errorf("after change %d the ETag is that of change %d", i, before)
		}
		seen[etag] = i
	}
	upsert(t, s, dynamic, Change{Size: 5})
	if etag := upsert(t, s, dynamic, Change{Size: 1}).ETag; seen[etag] != len(seen)-1 {
		t.Error("the ETag is another though the group is the same")
	}
}
