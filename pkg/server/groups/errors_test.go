// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
		{"unknown instance type", dynamic, Change{Settings: Settings{Template: "worker", InstanceType: "huge"}}, invalid, `config.instance_type: Invalid value: "huge": no instance type of architecture "amd64", known are "c7i.large", "m7i.large"`},
		{"instance type of another architecture", main, Change{Settings: Settings{InstanceType: "m7g.large"}}, invalid, `config.instance_type: Invalid value: "m7g.large": no instance type of architecture "amd64", known are "c7i.large", "m7i.large"`},
		{"no instance type at all", dynamic, Change{Settings: Settings{Template: "bare", SubnetPools: []string{"open"}}}, invalid, `config.instance_type: Invalid value: "": no instance type of architecture "amd64"`},
		{"no pool at all", dynamic, Change{Settings: Settings{Template: "bare", InstanceType: "m7i.large"}}, invalid, `config.subnets: Required value: template "bare" has no subnet pool`},
		{"unknown pool", dynamic, Change{Settings: Settings{Template: "worker", SubnetPools: []string{"open", "none"}}}, invalid, `config.subnets[1]: Invalid value: "none": unknown subnet pool, known are "closed", "open", "other"`},
		{"pool given twice", dynamic, Change{Settings: Settings{Template: "worker", SubnetPools: []string{"open", "open"}}}, invalid, `config.subnets[1]: Duplicate value: "open"`},
		{"pool that dynamic groups may not use", dynamic, Change{Settings: Settings{Template: "worker", SubnetPools: []string{"closed"}}}, invalid, `config.subnets[0]: Unsupported value: "closed": supported values: "open", "other"`},
		{"template whose pool dynamic groups may not use", dynamic, Change{Settings: Settings{Template: "arm"}}, invalid, `config.subnets[0]: Unsupported value: "closed": supported values: "open", "other"`},
		{"args of a dynamic group", dynamic, Change{Settings: Settings{Template: "worker"}, Args: map[string]string{"a": "b"}}, invalid, `config.args: Forbidden: provider fake takes none from operators, only from the server configuration`},
		{"another template of a static group", main, Change{Settings: Settings{Template: "arm"}}, restricted, `config.template: Forbidden: "arm" is set by the server configuration, which allows only "worker"`},
		{"an unknown template of a static group", main, Change{Settings: Settings{Template: "knz"}}, restricted, `config.template: Forbidden: "knz" is set by the server configuration, which allows only "worker"`},
		{"other pools of a static group", main, Change{Settings: Settings{SubnetPools: []string{"open"}}}, restricted, `config.subnets: Forbidden: ["open"] is set by the server configuration, which allows only ["closed"]`},
		{"more pools of a static group", main, Change{Settings: Settings{SubnetPools: []string{"closed", "open"}}}, restricted, `config.subnets: Forbidden: ["closed" "open"] is set by the server configuration, which allows only ["closed"]`},
		{"args of a static group", main, Change{Args: map[string]string{"a": "b"}}, restricted, `config.args: Forbidden: a static group takes none`},
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
