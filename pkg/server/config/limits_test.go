// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// TestMinSize: a static group that the configuration gives instances keeps one, unless the
// configuration says otherwise. A dynamic group keeps none.
func TestMinSize(t *testing.T) {
	c := &Config{
		Templates: map[string]Template{"worker": {Size: 2}, "empty": {}},
		Groups: map[string]map[string]Group{"default": {
			"of-template": {Template: "worker"},
			"of-group":    {Template: "empty", Size: ptr.To[int32](5)},
			"stopped":     {Template: "worker", Size: ptr.To[int32](0)},
			"empty":       {Template: "empty"},
			"three":       {Template: "worker", Size: ptr.To[int32](5), Limits: Limits{MinSize: ptr.To[int32](3)}},
			"to-zero":     {Template: "worker", Limits: Limits{MinSize: ptr.To[int32](0)}},
		}},
	}
	for group, want := range map[string]int32{
		"of-template": 1, "of-group": 1, "stopped": 0, "empty": 0, "three": 3, "to-zero": 0, "dynamic": 0,
	} {
		assert.Equal(t, want, c.MinSize("default", group), group)
	}
	assert.Zero(t, c.MinSize("other", "three"), "a group of another tenant")
}

// TestSettingLimits: the limits of a group win over the limits of its template, list by list. An
// operator sets no vars of a static group, and creates no instances in it, unless a list says so.
func TestSettingLimits(t *testing.T) {
	c := &Config{
		Templates: map[string]Template{
			"free": {},
			"narrow": {Limits: SettingLimits{
				Vars: []string{"team-*"}, InstanceTypes: []string{"m7i.*"}, SubnetPools: []string{}, LoadBalancers: []string{"team-*"}, DrainTimeout: new(time.Hour), OnDemand: new(true),
			}},
		},
		Groups: map[string]map[string]Group{"default": {
			"free":   {Template: "free"},
			"narrow": {Template: "narrow"},
			"own":    {Template: "narrow", Limits: Limits{SettingLimits: SettingLimits{Vars: []string{}, InstanceTypes: []string{"*"}, DrainTimeout: new(time.Duration(0)), OnDemand: new(false)}}},
		}},
	}
	all, none := []string{"*"}, []string{}
	day, never := new(24*time.Hour), new(time.Duration(0))
	narrow := c.Templates["narrow"].Limits
	for _, tc := range []struct {
		group, template string
		want            SettingLimits
	}{
		{"free", "free", SettingLimits{Vars: none, InstanceTypes: all, SubnetPools: all, LoadBalancers: none, DrainTimeout: never, OnDemand: new(false)}},
		{"narrow", "narrow", narrow},
		{"own", "narrow", SettingLimits{Vars: none, InstanceTypes: all, SubnetPools: none, LoadBalancers: []string{"team-*"}, DrainTimeout: never, OnDemand: new(false)}},
		{"dynamic", "free", SettingLimits{Vars: all, InstanceTypes: all, SubnetPools: all, LoadBalancers: none, DrainTimeout: day, OnDemand: new(true)}},
		{"dynamic", "narrow", narrow},
	} {
		assert.Equal(t, tc.want, c.SettingLimits("default", tc.group, tc.template), "%s of %s", tc.group, tc.template)
	}
}

func TestCheckAllowed(t *testing.T) {
	path := field.NewPath("vars")
	for _, name := range []string{"team", "team-a", "role"} {
		assert.Empty(t, CheckAllowed(path, name, "vars", []string{"team*", "role"}), name)
	}
	assert.EqualError(t, CheckAllowed(path, "roles", "vars", []string{"team*", "role"}).ToAggregate(),
		`vars: Forbidden: "roles" is not allowed: the server's configuration allows team*, role (limits.vars)`)
	assert.EqualError(t, CheckAllowed(path, "role", "vars", []string{}).ToAggregate(),
		`vars: Forbidden: "role" is not allowed: the server's configuration allows nothing (limits.vars)`)
}

func TestMaxOnDemandPerHour(t *testing.T) {
	_, limited := (&Config{}).MaxOnDemandPerHour()
	assert.False(t, limited)
	limit, limited := (&Config{Shard: Shard{MaxOnDemandPerHour: ptr.To[int32](0)}}).MaxOnDemandPerHour()
	assert.True(t, limited)
	assert.Zero(t, limit)
}

func TestMaxOnDemand(t *testing.T) {
	assert.Equal(t, 10000, (&Config{}).MaxOnDemand())
	assert.Zero(t, (&Config{Shard: Shard{MaxOnDemand: ptr.To[int32](0)}}).MaxOnDemand())
}

func TestMaxCallsPerSecond(t *testing.T) {
	assert.Equal(t, 1000, (&Config{}).MaxCallsPerSecond())
	assert.Equal(t, 1, (&Config{Shard: Shard{MaxCallsPerSecond: ptr.To[int32](1)}}).MaxCallsPerSecond())
}
