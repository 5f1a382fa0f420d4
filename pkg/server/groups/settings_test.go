// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"reflect"
	"testing"

	"nstance.dev/operator/pkg/testing/settingstest"
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

// A setting of infraSettings replaces the instances, no other one does, and every
// setting changes the ETag, by which a change is noticed.
func TestEachSettingIsInItsHashOnly(t *testing.T) {
	var other Settings
	settingstest.Fill(&other)
	before := withHashes(t, sample())
	for setting := range reflect.TypeFor[Settings]().Fields() {
		want := byNone
		if _, infra := reflect.TypeFor[infraSettings]().FieldByName(setting.Name); infra {
			want = byInfra
		} else if setting.Name == "Vars" {
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

	// The first declaration removes nothing: it declared none of that.
	change(false, true, Settings{Template: "worker", Vars: vars("b", "c"), SubnetPools: []string{"private"}})
	expect(Settings{Template: "worker", InstanceType: "large", SubnetPools: []string{"private"}, Vars: vars("a", "b", "c")})

	change(false, true, Settings{Template: "worker", InstanceType: "small", Vars: vars("c")})
	expect(Settings{Template: "worker", InstanceType: "small", Vars: vars("a", "c")})
	change(false, true, Settings{Template: "worker"})
	expect(Settings{Template: "worker", Vars: vars("a")})
	if want := (Settings{Template: "worker"}); !reflect.DeepEqual(*s.Declared, want) {
		t.Errorf("declared %+v, want %+v", *s.Declared, want)
	}

	// A change that is not declarative leaves the declaration as it was.
	change(false, false, Settings{Vars: vars("d")})
	expect(Settings{Template: "worker", Vars: vars("a", "d")})
	if len(s.Declared.Vars) > 0 {
		t.Errorf("declared %+v by a change that was not declarative", *s.Declared)
	}

	// Of a static group, template and subnet pools are the configuration's.
	s = nil
	change(true, true, Settings{Template: "worker", SubnetPools: []string{"private"}, Vars: vars("a")})
	expect(Settings{Vars: vars("a")})
	change(true, true, Settings{})
	expect(Settings{})
}
