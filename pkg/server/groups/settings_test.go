// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/nodesettings"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/testing/settingstest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// A setting that is forgotten in one of these would never be set, or never be
// removed.
func TestEverySettingIsMergedAndRemoved(t *testing.T) {
	var all Settings
	settingstest.Fill(&all)
	if got := (Settings{}).merge(all); !reflect.DeepEqual(got, all) {
		t.Errorf("merged to %+v, want %+v", got, all)
	}
	if got := all.merge(Settings{}); !reflect.DeepEqual(got, all) {
		t.Errorf("an empty change gives %+v, want %+v", got, all)
	}
	if got := all.without(all, all); !reflect.DeepEqual(got, all) {
		t.Errorf("declared again gives %+v, want %+v", got, all)
	}
	if got := all.without(Settings{}, Settings{}); !reflect.DeepEqual(got, all) {
		t.Errorf("what was never declared was removed: %+v, want %+v", got, all)
	}
	for i := range reflect.TypeFor[Settings]().NumField() {
		next, want := all, all
		reflect.ValueOf(&next).Elem().Field(i).SetZero()
		reflect.ValueOf(&want).Elem().Field(i).SetZero()
		if got := all.without(all, next); !reflect.DeepEqual(got, want) {
			t.Errorf("%s was not removed: %+v", reflect.TypeFor[Settings]().Field(i).Name, got)
		}
	}
}

// Only a setting of infraSettings replaces the instances, and every setting changes the ETag,
// which shows a change.
func TestEachSettingIsInItsHashOnly(t *testing.T) {
	var other Settings
	settingstest.Fill(&other)
	before := withHashes(t, sample())
	for setting := range reflect.TypeFor[Settings]().Fields() {
		want := byNone
		if _, infra := reflect.TypeFor[infraSettings]().FieldByName(setting.Name); infra {
			want = byInfra
		} else if setting.Name == "Vars" || setting.Name == "Node" {
			want = byRuntime
		}
		group := sample()
		reflect.ValueOf(&group.Settings).Elem().FieldByIndex(setting.Index).Set(reflect.ValueOf(other).FieldByIndex(setting.Index))
		after := withHashes(t, group)
		got := covered{runtime: after.RuntimeConfigHash != before.RuntimeConfigHash, infra: after.InfraConfigHash != before.InfraConfigHash}
		if got != want {
			t.Errorf("%s changes %+v, want %+v", setting.Name, got, want)
		}
		if after.ETag == before.ETag {
			t.Errorf("%s does not change the ETag", setting.Name)
		}
	}
}

func TestDeclarativeChanges(t *testing.T) {
	var s *stored
	change := func(static, declarative bool, settings Settings) {
		s = s.with(Change{Settings: settings, Declarative: declarative}, static)
	}
	vars := func(names ...string) map[string]string {
		all := map[string]string{}
		for _, name := range names {
			all[name] = "x"
		}
		return all
	}
	expect := func(want Settings) {
		t.Helper()
		if len(want.Vars) == 0 {
			want.Vars = nil
		}
		if !reflect.DeepEqual(s.Settings, want) {
			t.Errorf("stored %+v, want %+v", s.Settings, want)
		}
	}
	// An earlier client, or an older operator, only adds.
	change(false, false, Settings{Template: "worker", Vars: vars("a")})
	change(false, false, Settings{InstanceType: "large"})
	expect(Settings{Template: "worker", InstanceType: "large", Vars: vars("a")})

	// The first declaration removes nothing, because nothing was declared before.
	change(false, true, Settings{Template: "worker", Vars: vars("b", "c"), SubnetPools: []string{"private"}})
	expect(Settings{Template: "worker", InstanceType: "large", SubnetPools: []string{"private"}, Vars: vars("a", "b", "c")})

	change(false, true, Settings{Template: "worker", InstanceType: "small", Vars: vars("c")})
	expect(Settings{Template: "worker", InstanceType: "small", Vars: vars("a", "c")})
	change(false, true, Settings{Template: "worker"})
	expect(Settings{Template: "worker", Vars: vars("a")})
	if want := (Settings{Template: "worker"}); !reflect.DeepEqual(*s.Declared, want) {
		t.Errorf("declared %+v, want %+v", *s.Declared, want)
	}

	// A change without a declaration leaves the declaration as it was.
	change(false, false, Settings{Vars: vars("d")})
	expect(Settings{Template: "worker", Vars: vars("a", "d")})
	if len(s.Declared.Vars) > 0 {
		t.Errorf("declared %+v by a change that was not declarative", *s.Declared)
	}

	// The configuration alone decides template and subnet pools of a static group.
	s = nil
	change(true, true, Settings{Template: "worker", SubnetPools: []string{"private"}, Vars: vars("a")})
	expect(Settings{Vars: vars("a")})
	change(true, true, Settings{})
	expect(Settings{})
}

// The configuration of a group decides whether its unhealthy instances are kept.
func TestKeepUnhealthy(t *testing.T) {
	for _, keep := range []bool{false, true} {
		group, err := merge(newConfigWith(map[string]config.Group{"main": {Template: "worker", KeepUnhealthy: keep}}), main, nil)
		require.NoError(t, err)
		assert.Equal(t, keep, group.KeepUnhealthy)
	}
}

// configured and fromTemplate return the static groups without changes of
// operators.
func configured() Group {
	return Group{
		Key: main, Settings: Settings{Template: "worker", InstanceType: "c7i.large", SubnetPools: []string{"closed"}, Vars: map[string]string{"role": "main", "tier": "one", "own": "yes", "region": "west"}}, Kind: "knd", Arch: "amd64", Size: 3, MinSize: 1, Static: true,
		Args:     map[string]any{"labels": map[string]any{"tier": "one", "own": "yes", "region": "west"}},
		Userdata: config.Userdata{Inline: "#!/bin/sh"}, Files: workerFiles(), DrainTimeout: time.Minute,
	}
}

func fromTemplate(key instance.GroupKey, size int32, static bool) Group {
	return Group{
		Key: key, Settings: Settings{Template: "worker", InstanceType: "m7i.large", SubnetPools: []string{"open"}, Vars: map[string]string{"role": "worker", "tier": "one", "region": "west"}}, Kind: "knd", Arch: "amd64", Size: size, MinSize: minSize(static), Static: static,
		Args:     map[string]any{"labels": map[string]any{"tier": "one", "region": "west"}},
		Userdata: config.Userdata{Inline: "#!/bin/sh"}, Files: workerFiles(), DrainTimeout: 5 * time.Minute,
	}
}

// minSize returns the smallest size of a group that has instances.
func minSize(static bool) int32 {
	if static {
		return 1
	}
	return 0
}

func workerFiles() map[string]config.File {
	return map[string]config.File{
		"a.env": {Kind: "env", Content: map[string]any{"A": "default"}},
		"b.txt": {Kind: "string", Content: map[string]any{"text": "b"}},
	}
}

// with returns g after change.
func with(g Group, change func(*Group)) Group {
	change(&g)
	return g
}

func TestUpsertMerges(t *testing.T) {
	worker := Change{Settings: Settings{Template: "worker"}, Size: 2}
	tests := []struct {
		name    string
		key     instance.GroupKey
		changes []Change
		want    Group
	}{
		{"a static group is as configured, over its template", main, nil, configured()},
		{"a static group that is silent has its template's values", plain, nil, fromTemplate(plain, 2, true)},
		{"a new group has what its template has", dynamic, []Change{worker}, fromTemplate(dynamic, 2, false)},
		{"the size of a new group is not its template's", dynamic, []Change{{Settings: Settings{Template: "worker"}}}, fromTemplate(dynamic, 0, false)},
		{
			"a new group's own values go over its template's", dynamic,
			[]Change{{Settings: Settings{Template: "worker", InstanceType: "r7i.large", SubnetPools: []string{"other", "open"}, Vars: map[string]string{"tier": "two", "new": "1"}}, Size: 1}},
			with(fromTemplate(dynamic, 1, false), func(g *Group) {
				g.InstanceType, g.SubnetPools = "r7i.large", []string{"other", "open"}
				g.Vars = map[string]string{"role": "worker", "tier": "two", "region": "west", "new": "1"}
			}),
		},
		{"size replaces, a zero too", dynamic, []Change{{Settings: Settings{Template: "worker"}, Size: 5}, {Size: 0}}, fromTemplate(dynamic, 0, false)},
		{
			"what a change does not name stays", dynamic,
			[]Change{{Settings: Settings{Template: "worker", InstanceType: "r7i.large", SubnetPools: []string{"other"}, Vars: map[string]string{"a": "1"}}}, {Size: 7}},
			with(fromTemplate(dynamic, 7, false), func(g *Group) {
				g.InstanceType, g.SubnetPools = "r7i.large", []string{"other"}
				g.Vars = map[string]string{"role": "worker", "tier": "one", "region": "west", "a": "1"}
			}),
		},
		{
			"what a change names replaces", dynamic,
			[]Change{{Settings: Settings{Template: "worker", InstanceType: "r7i.large", SubnetPools: []string{"other"}}}, {Settings: Settings{Template: "bare", InstanceType: "t3.large", SubnetPools: []string{"open"}}}},
			Group{
				Key: dynamic, Settings: Settings{Template: "bare", InstanceType: "t3.large", SubnetPools: []string{"open"}, Vars: map[string]string{"tier": "none", "region": "west"}}, Kind: "bar", Arch: "amd64",
				Args:     map[string]any{"labels": map[string]any{"tier": "none", "region": "west"}},
				Userdata: config.Userdata{Inline: "#!/bin/sh"}, DrainTimeout: 5 * time.Minute,
				Files: map[string]config.File{"a.env": {Kind: "env", Content: map[string]any{"A": "default"}}},
			},
		},
		{
			"vars are added key by key", dynamic,
			[]Change{{Settings: Settings{Template: "worker", Vars: map[string]string{"a": "1", "b": "1"}}}, {Settings: Settings{Vars: map[string]string{"b": "2", "c": "2", "tier": ""}}}},
			with(fromTemplate(dynamic, 0, false), func(g *Group) {
				g.Vars = map[string]string{"role": "worker", "tier": "", "region": "west", "a": "1", "b": "2", "c": "2"}
			}),
		},
		{
			"size, instance type and vars of a static group are overridden", main,
			[]Change{{Size: 9, Settings: Settings{InstanceType: "m7i.xlarge", Vars: map[string]string{"own": "no", "x": "y"}}}},
			with(configured(), func(g *Group) {
				g.Size, g.InstanceType = 9, "m7i.xlarge"
				g.Vars = map[string]string{"role": "main", "tier": "one", "region": "west", "own": "no", "x": "y"}
			}),
		},
		{
			"values equal to those configured pass", main,
			[]Change{{Size: 4, Settings: Settings{Template: "worker", SubnetPools: []string{"closed"}}}},
			with(configured(), func(g *Group) { g.Size = 4 }),
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			s := open(t, newStorage(t))
			for _, change := range tc.changes {
				if answer := upsert(t, s, tc.key, change); answer != get(t, s, tc.key) {
					t.Errorf("was answered %+v, but the group is %+v", answer, get(t, s, tc.key))
				}
			}
			got := get(t, s, tc.key)
			if diff := cmp.Diff(&tc.want, got, cmpopts.IgnoreFields(Group{}, "ETag", "OperatorVars", "Type", "RuntimeConfigHash", "InfraConfigHash")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if want := s.Config().Shard.Infra.InstanceTypes[tc.want.InstanceType]; !assert.ObjectsAreEqual(want, got.Type) || want.Name != tc.want.InstanceType {
				t.Errorf("the type is %+v, want %+v", got.Type, want)
			}
		})
	}
}

// TestLayers sets the same fields in the defaults, a template and a group.
func TestLayers(t *testing.T) {
	const defaultTimeout = 5 * time.Minute
	tests := []struct {
		name   string
		change func(*config.Config, *config.Template, *config.Group)
		got    func(*Group) any
		want   any
	}{
		{"userdata of the defaults", func(*config.Config, *config.Template, *config.Group) {}, func(g *Group) any { return g.Userdata }, config.Userdata{Inline: "#!/bin/sh"}},
		{
			"userdata of the template, as a whole",
			func(_ *config.Config, template *config.Template, _ *config.Group) {
				template.Userdata.URL = "https://example.com"
			},
			func(g *Group) any { return g.Userdata }, config.Userdata{URL: "https://example.com"},
		},
		{
			"a file of the template replaces that of the defaults",
			func(_ *config.Config, template *config.Template, _ *config.Group) {
				template.Files = map[string]config.File{"a.env": {Kind: "json"}}
			},
			func(g *Group) any { return g.Files }, map[string]config.File{"a.env": {Kind: "json"}},
		},
		{
			"vars of all three",
			func(c *config.Config, template *config.Template, group *config.Group) {
				c.Defaults.Vars = map[string]string{"a": "defaults", "b": "defaults", "c": "defaults"}
				template.Vars = map[string]string{"b": "template", "c": "template"}
				group.Vars = map[string]string{"c": "group"}
			},
			func(g *Group) any { return g.Vars }, map[string]string{"a": "defaults", "b": "template", "c": "group"},
		},
		{
			"args of all three, objects as one and lists as a whole",
			func(c *config.Config, template *config.Template, group *config.Group) {
				c.Defaults.Args = map[string]any{"labels": map[string]any{"a": "defaults", "b": "defaults"}, "list": []any{"x", "y"}}
				template.Args = map[string]any{"labels": map[string]any{"b": "template", "c": "template"}}
				group.Args = map[string]any{"labels": map[string]any{"c": "group"}, "list": []any{"z"}}
			},
			func(g *Group) any { return g.Args },
			map[string]any{"labels": map[string]any{"a": "defaults", "b": "template", "c": "group"}, "list": []any{"z"}},
		},
		{"the shard's drain timeout", func(*config.Config, *config.Template, *config.Group) {}, func(g *Group) any { return g.DrainTimeout }, defaultTimeout},
		{
			"the group's drain timeout, a zero too",
			func(_ *config.Config, _ *config.Template, group *config.Group) {
				group.DrainTimeout = new(time.Duration(0))
			},
			func(g *Group) any { return g.DrainTimeout }, time.Duration(0),
		},
		{
			"the group's size, a zero too",
			func(_ *config.Config, _ *config.Template, group *config.Group) { group.Size = new(int32(0)) },
			func(g *Group) any { return g.Size }, int32(0),
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			c := newConfig()
			template, group := c.Templates["worker"], c.Groups["default"]["plain"]
			tc.change(c, &template, &group)
			c.Templates["worker"], c.Groups["default"]["plain"] = template, group
			s := openWith(t, newStorage(t), c)
			if diff := cmp.Diff(tc.want, tc.got(get(t, s, plain))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTenantsAreSeparate(t *testing.T) {
	s := open(t, newStorage(t))
	other := instance.GroupKey{Tenant: "other", Group: main.Group}
	if _, _, err := s.Upsert(t.Context(), other, Change{Size: 1}); !errors.As(err, new(*InvalidError)) {
		t.Errorf("%s took its template from %s: error %v", other, main, err)
	}
	before := get(t, s, main)
	if group := upsert(t, s, other, Change{Settings: Settings{Template: "worker"}, Size: 1}); group.Static {
		t.Errorf("%s is static since %s is", other, main)
	}
	if get(t, s, main) != before {
		t.Errorf("a change of %s changed %s", other, main)
	}
}

func TestETagFollowsTheGroup(t *testing.T) {
	s := open(t, newStorage(t))
	seen := map[string]int{}
	for i, change := range []Change{
		{Settings: Settings{Template: "worker"}},
		{Size: 1},
		{Size: 1, Settings: Settings{InstanceType: "t3.large"}},
		{Size: 1, Settings: Settings{SubnetPools: []string{"other"}}},
		{Size: 1, Settings: Settings{SubnetPools: []string{"open", "other"}}},
		{Size: 1, Settings: Settings{Vars: map[string]string{"a": "1"}}},
		{Size: 1, Settings: Settings{Vars: map[string]string{"a": "2"}}},
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

// withBalancers returns a configuration with load balancers, one of which is in the template
// worker.
func withBalancers(static map[string]config.Group, keys ...string) *config.Config {
	c := newConfigWith(static)
	c.LoadBalancers = map[string]provider.LoadBalancer{}
	for _, key := range keys {
		c.LoadBalancers[key] = provider.LoadBalancer{Key: key}
	}
	worker := c.Templates["worker"]
	worker.LoadBalancers = []string{"web"}
	c.Templates["worker"] = worker
	return c
}

func TestLoadBalancersOfGroups(t *testing.T) {
	c := withBalancers(map[string]config.Group{
		"of-template": {Template: "worker"},
		"own":         {Template: "worker", LoadBalancers: []string{"api"}},
		"none":        {Template: "worker", LoadBalancers: []string{}},
		"bare":        {Template: "bare", InstanceType: "t3.large", SubnetPool: "open"},
	}, "web", "api")
	s := openWith(t, newStorage(t), c)
	dynamic := instance.GroupKey{Tenant: "default", Group: "dynamic"}
	upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 1})
	for name, want := range map[string][]string{"of-template": {"web"}, "own": {"api"}, "none": {}, "bare": nil, "dynamic": {"web"}} {
		assert.Equal(t, want, get(t, s, instance.GroupKey{Tenant: "default", Group: name}).LoadBalancers, name)
	}
}

// A static group that the configuration drops keeps its load balancers, also after a
// restart, except those that the configuration drops too.
func TestLoadBalancersOfADroppedGroup(t *testing.T) {
	static := map[string]config.Group{
		"own":         {Template: "worker", LoadBalancers: []string{"api", "old"}},
		"none":        {Template: "worker", LoadBalancers: []string{}},
		"of-template": {Template: "worker"},
	}
	store := newStorage(t)
	s := openWith(t, store, withBalancers(static, "web", "api", "old"))
	check := func(s *Store, own ...string) {
		t.Helper()
		for name, want := range map[string][]string{"own": own, "none": {}, "of-template": {"web"}} {
			assert.Equal(t, want, get(t, s, instance.GroupKey{Tenant: "default", Group: name}).LoadBalancers, name)
		}
	}
	next := withBalancers(nil, "web", "api", "old")
	require.NoError(t, s.Reconfigure(t.Context(), next))
	check(s, "api", "old")
	check(openWith(t, store, next), "api", "old")
	require.NoError(t, s.Reconfigure(t.Context(), withBalancers(nil, "web", "api")))
	check(s, "api")
}

// What an operator set stays when the configuration drops the group, and is withdrawn as every
// setting: by a declarative change without it.
func TestLoadBalancersThatAnOperatorSet(t *testing.T) {
	allowed := func(static map[string]config.Group) *config.Config {
		c := withBalancers(static, "web", "api")
		worker := c.Templates["worker"]
		worker.Limits.LoadBalancers = []string{"*"}
		c.Templates["worker"] = worker
		return c
	}
	static := map[string]config.Group{"fixed": {Template: "worker"}}
	fixed := instance.GroupKey{Tenant: "default", Group: "fixed"}
	set := Change{Settings: Settings{LoadBalancers: []string{"api"}}, Size: 1, Declarative: true}
	store := newStorage(t)
	s := openWith(t, store, allowed(static))
	upsert(t, s, fixed, set)
	require.NoError(t, s.Reconfigure(t.Context(), allowed(nil)))
	assert.Equal(t, []string{"api"}, get(t, s, fixed).LoadBalancers)
	s = openWith(t, store, allowed(nil))
	assert.Equal(t, []string{"api"}, get(t, s, fixed).LoadBalancers, "after a restart")
	upsert(t, s, fixed, Change{Size: 1, Declarative: true})
	assert.Equal(t, []string{"web"}, get(t, s, fixed).LoadBalancers)
}

// TestDrainTimeoutThatAnOperatorSet: it stays when the configuration drops the group, and when it is
// withdrawn, the drain timeout of the configuration applies again. It replaces no instance.
func TestDrainTimeoutThatAnOperatorSet(t *testing.T) {
	allowed := func(c *config.Config) *config.Config {
		worker := c.Templates["worker"]
		worker.Limits.DrainTimeout = new(time.Hour)
		c.Templates["worker"] = worker
		return c
	}
	dropped := allowed(newConfigWith(nil))
	store := newStorage(t)
	s := openWith(t, store, allowed(newConfig()))
	before := get(t, s, main)
	upsert(t, s, main, Change{Settings: Settings{DrainTimeoutSeconds: 1800}, Size: 3, Declarative: true})
	check := func(what string, want time.Duration) {
		t.Helper()
		group := get(t, s, main)
		assert.Equal(t, want, group.DrainTimeout, what)
		assert.Equal(t, before.InfraConfigHash, group.InfraConfigHash, what)
		assert.Equal(t, before.RuntimeConfigHash, group.RuntimeConfigHash, what)
		assert.NotEqual(t, before.ETag, group.ETag, what)
	}
	check("set", 30*time.Minute)
	require.NoError(t, s.Reconfigure(t.Context(), dropped))
	check("dropped", 30*time.Minute)
	s = openWith(t, store, dropped)
	check("after a restart", 30*time.Minute)
	upsert(t, s, main, Change{Size: 3, Declarative: true})
	check("withdrawn", time.Minute)
}

// TestReportedDrainTimeout: what an operator may send again is reported, and 0 is no drain.
func TestReportedDrainTimeout(t *testing.T) {
	for timeout, want := range map[time.Duration]int32{
		0: 0, 1: 1, time.Second: 1, time.Second + 1: 2, 5 * time.Minute: 300, math.MaxInt64: math.MaxInt32,
	} {
		var status nstancev1.GroupStatus
		ReportSettings(&status, &Group{DrainTimeout: timeout})
		assert.Equal(t, want, status.GetDrainTimeoutSeconds(), timeout)
	}
}

// A change of the load balancers is a change of the group that replaces no instance.
func TestLoadBalancersChangeTheETagOnly(t *testing.T) {
	group := sample()
	before := withHashes(t, group)
	group.LoadBalancers = []string{"web"}
	after := withHashes(t, group)
	assert.NotEqual(t, before.ETag, after.ETag)
	assert.Equal(t, before.InfraConfigHash, after.InfraConfigHash)
	assert.Equal(t, before.RuntimeConfigHash, after.RuntimeConfigHash)
}

// TestReportedVars: values of the configuration may be secrets, and a status is read by many.
func TestReportedVars(t *testing.T) {
	s := open(t, newStorage(t))
	declared := Change{Settings: Settings{Template: "worker", Vars: map[string]string{"a": "1", "tier": "two"}}, Declarative: true}
	upsert(t, s, dynamic, declared)
	upsert(t, s, plain, Change{Size: 2, Settings: Settings{Vars: map[string]string{"a": "1"}}})
	for key, want := range map[instance.GroupKey]map[string]string{
		main:    {"role": "", "own": "", "tier": "", "region": ""},
		plain:   {"role": "", "tier": "", "region": "", "a": "1"},
		dynamic: {"role": "", "tier": "two", "region": "", "a": "1"},
	} {
		var status nstancev1.GroupStatus
		ReportSettings(&status, get(t, s, key))
		assert.Equal(t, want, status.GetVars(), key)
	}
	reconfigure(t, s, newConfigWith(nil))
	var status nstancev1.GroupStatus
	ReportSettings(&status, get(t, s, dynamic))
	assert.Equal(t, map[string]string{"role": "", "tier": "two", "region": "", "a": "1"}, status.GetVars())
}

// withNodes returns a configuration whose template and whose static group main have settings of Nodes.
func withNodes(static map[string]config.Group) *config.Config {
	c := newConfigWith(static)
	worker := c.Templates["worker"]
	worker.Node = nodesettings.Settings{
		Labels: map[string]string{"a": "template", "b": "template"}, MaxPods: 20,
		Taints: []nodesettings.Taint{{Key: "x", Value: "template", Effect: "NoSchedule"}, {Key: "x", Effect: "NoExecute"}},
	}
	c.Templates["worker"] = worker
	return c
}

// TestNodeSettings: settings of a template, a static group and an operator are merged and reported, and
// those that an operator no longer declares are removed. Nothing of it replaces an instance, and files
// that may have them are sent.
func TestNodeSettings(t *testing.T) {
	static := map[string]config.Group{"main": {Template: "worker", Node: nodesettings.Settings{
		Labels: map[string]string{"b": "group", "c": "group"}, Taints: []nodesettings.Taint{{Key: "x", Value: "group", Effect: "NoSchedule"}},
	}}}
	store := newStorage(t)
	s := openWith(t, store, withNodes(static))
	configured := nodesettings.Settings{
		Labels:  map[string]string{"a": "template", "b": "group", "c": "group"},
		Taints:  []nodesettings.Taint{{Key: "x", Effect: "NoExecute"}, {Key: "x", Value: "group", Effect: "NoSchedule"}},
		MaxPods: 20,
	}
	before := get(t, s, main)
	assert.Equal(t, configured, before.Node)

	set := nodesettings.Settings{
		Labels: map[string]string{"c": "operator", "d": "operator"}, MaxPods: 17,
		Taints: []nodesettings.Taint{{Key: "x", Value: "operator", Effect: "NoExecute"}},
	}
	merged := nodesettings.Settings{
		Labels:  map[string]string{"a": "template", "b": "group", "c": "operator", "d": "operator"},
		Taints:  []nodesettings.Taint{{Key: "x", Value: "group", Effect: "NoSchedule"}, {Key: "x", Value: "operator", Effect: "NoExecute"}},
		MaxPods: 17,
	}
	upsert(t, s, main, Change{Settings: Settings{Node: set}, Size: 3, Declarative: true})
	check := func(what string, want nodesettings.Settings) {
		t.Helper()
		group := get(t, s, main)
		assert.Equal(t, want, group.Node, what)
		assert.Equal(t, before.InfraConfigHash, group.InfraConfigHash, what)
		var status nstancev1.GroupStatus
		ReportSettings(&status, group)
		assert.Equal(t, want, nodesettings.Of(status.GetNodeSettings()), what)
	}
	check("set", merged)
	assert.NotEqual(t, before.ETag, get(t, s, main).ETag)
	assert.NotEqual(t, before.RuntimeConfigHash, get(t, s, main).RuntimeConfigHash)
	assert.Equal(t, set, nodesettings.Of(SettingsMessage(*get(t, s, main).Declared).GetNodeSettings()))

	s = openWith(t, store, withNodes(static))
	check("after a restart", merged)
	require.NoError(t, s.Reconfigure(t.Context(), withNodes(nil)))
	dropped := get(t, s, main).Node
	assert.ElementsMatch(t, merged.Taints, dropped.Taints, "dropped by the configuration")
	assert.Equal(t, merged.Labels, dropped.Labels, "dropped by the configuration")

	// A label of the template that changes is another one in the dropped group too.
	c := withNodes(nil)
	c.Templates["worker"].Node.Labels["a"] = "other"
	require.NoError(t, s.Reconfigure(t.Context(), c))
	assert.Equal(t, "other", get(t, s, main).Node.Labels["a"])

	require.NoError(t, s.Reconfigure(t.Context(), withNodes(static)))
	upsert(t, s, main, Change{Size: 3, Declarative: true})
	assert.NotContains(t, get(t, s, main).Node.Labels, "d", "removed")
}

// TestNodeSettingsAreRemoved: a declarative change without them leaves those of the configuration.
func TestNodeSettingsAreRemoved(t *testing.T) {
	s := openWith(t, newStorage(t), withNodes(map[string]config.Group{"main": {Template: "worker"}}))
	before := get(t, s, main)
	upsert(t, s, main, Change{Size: 2, Declarative: true, Settings: Settings{Node: nodesettings.Settings{
		Labels: map[string]string{"a": "operator", "d": "operator"}, MaxPods: 17, Taints: []nodesettings.Taint{{Key: "y", Effect: "NoExecute"}},
	}}})
	upsert(t, s, main, Change{Size: 2, Declarative: true, Settings: Settings{Node: nodesettings.Settings{Labels: map[string]string{"d": "operator"}}}})
	assert.Equal(t, before.Node.Merge(nodesettings.Settings{Labels: map[string]string{"d": "operator"}}), get(t, s, main).Node)
	upsert(t, s, main, Change{Size: 2, Declarative: true})
	assert.Equal(t, before.Node, get(t, s, main).Node)
	assert.Equal(t, before.RuntimeConfigHash, get(t, s, main).RuntimeConfigHash)
}

// TestNodeSettingsThatNoNodeCanHave are rejected, also in more requests than one, and in stored groups.
func TestNodeSettingsThatNoNodeCanHave(t *testing.T) {
	s := open(t, newStorage(t))
	for want, settings := range map[string]nodesettings.Settings{
		`config.node_settings.max_pods: Invalid value: 1001`:         {MaxPods: 1001},
		`config.node_settings.labels[a]: Invalid value: "b c"`:       {Labels: map[string]string{"a": "b c"}},
		`config.node_settings.taints[0].effect: Unsupported value`:   {Taints: []nodesettings.Taint{{Key: "a", Effect: "Never"}}},
		`config.node_settings.labels[nstance.dev/group]: Forbidden:`: {Labels: map[string]string{"nstance.dev/group": "other"}},
	} {
		_, _, err := s.Upsert(t.Context(), main, Change{Settings: Settings{Node: settings}, Size: 2})
		require.ErrorAs(t, err, new(*InvalidError), want)
		assert.Contains(t, err.Error(), want)
	}
	labels := func(from, to int) Settings {
		all := map[string]string{}
		for n := from; n < to; n++ {
			all[fmt.Sprintf("l%d", n)] = ""
		}
		return Settings{Node: nodesettings.Settings{Labels: all}}
	}
	upsert(t, s, main, Change{Settings: labels(0, 64), Size: 2})
	_, _, err := s.Upsert(t.Context(), main, Change{Settings: labels(64, 65), Size: 2})
	require.ErrorAs(t, err, new(*InvalidError))
	assert.Contains(t, err.Error(), "config.node_settings.labels: Too many: 65")
	assert.Len(t, get(t, s, main).Node.Labels, 64)
}
