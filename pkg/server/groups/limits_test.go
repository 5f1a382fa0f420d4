// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// TestTemplateOfAnotherTenant: whoever makes a group of a template gets the vars, the files and
// the load balancers of the template.
func TestTemplateOfAnotherTenant(t *testing.T) {
	c := newConfig()
	worker := c.Templates["worker"]
	worker.Tenants = nil // static groups of the default tenant use it
	c.Templates["worker"] = worker
	s := openWith(t, newStorage(t), c)
	stolen := instance.GroupKey{Tenant: "other", Group: "stolen"}
	_, _, err := s.Upsert(t.Context(), stolen, Change{Settings: Settings{Template: "worker"}, Size: 1})
	require.ErrorContains(t, err, `config.template: Invalid value: "worker": unknown template, known are "arm", "bare"`)
	upsert(t, s, stolen, Change{Settings: Settings{Template: "arm", SubnetPools: []string{"open"}}, Size: 1})
	_, _, err = s.Upsert(t.Context(), stolen, Change{Settings: Settings{Template: "worker", SubnetPools: []string{"open"}}, Size: 1})
	require.ErrorContains(t, err, `config.template: Invalid value: "worker": unknown template`, "a group that changes its template")
	upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 1})
}

// TestLimitsOfSettings: what the configuration does not allow is rejected if it changes.
func TestLimitsOfSettings(t *testing.T) {
	limited := config.SettingLimits{Vars: []string{"team-*"}, InstanceTypes: []string{"m7i.*"}, SubnetPools: []string{"open"}}
	had := Change{Settings: Settings{
		Template: "worker", InstanceType: "r7i.large", SubnetPools: []string{"other"}, Vars: map[string]string{"secret": "a"},
	}, Size: 1}
	for _, tc := range []struct {
		name   string
		change Settings
		want   string
	}{
		{"nothing changes", had.Settings, ""},
		{"what is allowed", Settings{InstanceType: "m7i.xlarge", SubnetPools: []string{"open", "other"}, Vars: map[string]string{"team-a": "b"}}, ""},
		{"a type", Settings{InstanceType: "c7i.large"}, `config.instance_type: Forbidden: "c7i.large" is not allowed: the server's configuration allows m7i.* (limits.instance_types)`},
		{"a new var", Settings{Vars: map[string]string{"role": "b"}}, `config.vars[role]: Forbidden: "role" is not allowed: the server's configuration allows team-* (limits.vars)`},
		{"another value of a var", Settings{Vars: map[string]string{"secret": "b"}}, `config.vars[secret]: Forbidden: "secret" is not allowed`},
		{"an escape sequence", Settings{Vars: map[string]string{"team-a": "\x1b[2J"}}, `config.vars[team-a]: Forbidden: has the control character '\x1b' at byte 0`},
		{"an end of a string of C", Settings{Vars: map[string]string{"team-a": "a\x00b"}}, `config.vars[team-a]: Forbidden: has the control character '\x00' at byte 1`},
		{"lines", Settings{Vars: map[string]string{"team-a": "a\n\tb\n"}}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := open(t, newStorage(t))
			upsert(t, s, dynamic, had)
			next := newConfig()
			worker := next.Templates["worker"]
			worker.Limits = limited
			next.Templates["worker"] = worker
			reconfigure(t, s, next)
			before := snapshot(t, s)
			_, _, err := s.Upsert(t.Context(), dynamic, Change{Settings: tc.change, Size: 1})
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
			assert.Equal(t, before, snapshot(t, s))
		})
	}
}

// TestLimitsOfLoadBalancers: an operator adds and leaves out only what the configuration allows, so
// that no pool takes the machines of a control plane out of its load balancer, or puts its own
// machines behind it.
func TestLimitsOfLoadBalancers(t *testing.T) {
	fixed := instance.GroupKey{Tenant: "default", Group: "fixed"}
	limited := func(allowed ...string) *config.Config {
		c := withBalancers(map[string]config.Group{"fixed": {Template: "worker"}}, "web", "api", "team-a", "team-b")
		worker := c.Templates["worker"]
		worker.Limits.LoadBalancers = allowed
		c.Templates["worker"] = worker
		return c
	}
	for _, tc := range []struct {
		name          string
		allowed, keys []string
		want          string
	}{
		{"no list", nil, nil, ""},
		{"what the configuration says", nil, []string{"web"}, ""},
		{"a key without a list of limits", nil, []string{"web", "team-a"}, `config.load_balancers[1]: Forbidden: "team-a" is not allowed: the server's configuration allows nothing (limits.load_balancers)`},
		{"what is allowed", []string{"team-*"}, []string{"team-b", "web", "team-a"}, ""},
		{"what is not allowed", []string{"team-*"}, []string{"web", "api"}, `config.load_balancers[1]: Forbidden: "api" is not allowed: the server's configuration allows team-* (limits.load_balancers)`},
		{"a key that is left out", []string{"team-*"}, []string{"team-a"}, `config.load_balancers: Forbidden: must contain "web": limits.load_balancers of the server's configuration does not allow to leave it out`},
		{"a key that may be left out", []string{"*"}, []string{"team-a"}, ""},
		{"an unknown key", []string{"*"}, []string{"none"}, `config.load_balancers[0]: Invalid value: "none": unknown load balancer`},
		{"a key that is given twice", []string{"*"}, []string{"api", "api"}, `config.load_balancers[1]: Duplicate value: "api"`},
	} {
		for _, key := range []instance.GroupKey{fixed, dynamic} {
			t.Run(tc.name+" "+key.Group, func(t *testing.T) {
				s := openWith(t, newStorage(t), limited(tc.allowed...))
				if key == dynamic {
					upsert(t, s, key, Change{Settings: Settings{Template: "worker"}, Size: 1})
				}
				before := snapshot(t, s)
				_, _, err := s.Upsert(t.Context(), key, Change{Settings: Settings{LoadBalancers: tc.keys}, Size: 1})
				if tc.want != "" {
					require.ErrorContains(t, err, tc.want)
					assert.Equal(t, before, snapshot(t, s))
					return
				}
				require.NoError(t, err)
				want := tc.keys
				if want == nil {
					want = []string{"web"}
				}
				assert.Equal(t, want, get(t, s, key).LoadBalancers)
			})
		}
	}
}

// TestLoadBalancersOfAnotherTemplate: a group that changes to a template has the load balancers of
// that template.
func TestLoadBalancersOfAnotherTemplate(t *testing.T) {
	c := withBalancers(nil, "web", "api")
	other := c.Templates["worker"]
	other.LoadBalancers = []string{"api"}
	c.Templates["other"] = other
	s := openWith(t, newStorage(t), c)
	upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 1})
	_, _, err := s.Upsert(t.Context(), dynamic, Change{Settings: Settings{Template: "other", LoadBalancers: []string{"web"}}, Size: 1})
	require.ErrorContains(t, err, `config.load_balancers[0]: Forbidden: "web" is not allowed`)
	require.ErrorContains(t, err, `must contain "api"`)
	upsert(t, s, dynamic, Change{Settings: Settings{Template: "other", LoadBalancers: []string{"api"}}, Size: 1})
}

// TestLimitsOfDrainTimeouts: an operator sets no longer drain timeout than the configuration allows,
// and without a limit none for a static group.
func TestLimitsOfDrainTimeouts(t *testing.T) {
	const none = `config.drain_timeout_seconds: Forbidden: the server's configuration does not allow to set it (limits.drain_timeout)`
	hour := new(time.Hour)
	for _, tc := range []struct {
		name    string
		key     instance.GroupKey
		limit   *time.Duration
		seconds int32
		want    string
	}{
		{"a dynamic group without a limit", dynamic, nil, 86400, ""},
		{"above the default limit", dynamic, nil, 86401, `config.drain_timeout_seconds: Invalid value: 86401: must be at most 24h0m0s (limits.drain_timeout of the server's configuration)`},
		{"the limit of a dynamic group", dynamic, hour, 3600, ""},
		{"above the limit of a dynamic group", dynamic, hour, 3601, "config.drain_timeout_seconds: Invalid value: 3601: must be at most 1h0m0s"},
		{"a dynamic group that may have none", dynamic, new(time.Duration(0)), 1, none},
		{"a static group without a limit", main, nil, 59, none},
		{"what the configuration says", main, nil, 60, ""},
		{"a static group with a limit", main, hour, 3600, ""},
		{"above the limit of a static group", main, hour, 3601, "config.drain_timeout_seconds: Invalid value: 3601: must be at most 1h0m0s"},
		{"a negative number", dynamic, nil, -1, "config.drain_timeout_seconds: Invalid value: -1: must not be negative"},
		{"the largest number", dynamic, nil, 1<<31 - 1, "config.drain_timeout_seconds: Invalid value: 2147483647: must be at most 24h0m0s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newConfig()
			worker := c.Templates["worker"]
			worker.Limits.DrainTimeout = tc.limit
			c.Templates["worker"] = worker
			s := openWith(t, newStorage(t), c)
			if tc.key == dynamic {
				upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 1})
			}
			before := snapshot(t, s)
			_, _, err := s.Upsert(t.Context(), tc.key, Change{Settings: Settings{DrainTimeoutSeconds: tc.seconds}, Size: 1})
			if tc.want != "" {
				require.ErrorContains(t, err, tc.want)
				assert.Equal(t, before, snapshot(t, s))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, time.Duration(tc.seconds)*time.Second, get(t, s, tc.key).DrainTimeout)
		})
	}
}

// TestALowerLimitOfDrainTimeouts: a group keeps the drain timeout that it has, and an operator that
// sends it again is not rejected.
func TestALowerLimitOfDrainTimeouts(t *testing.T) {
	s := open(t, newStorage(t))
	change := Change{Settings: Settings{Template: "worker", DrainTimeoutSeconds: 7200}, Size: 1}
	upsert(t, s, dynamic, change)
	next := newConfig()
	worker := next.Templates["worker"]
	worker.Limits.DrainTimeout = new(time.Hour)
	next.Templates["worker"] = worker
	reconfigure(t, s, next)
	change.Size = 2
	assert.Equal(t, 2*time.Hour, upsert(t, s, dynamic, change).DrainTimeout)
	change.DrainTimeoutSeconds = 7199
	_, _, err := s.Upsert(t.Context(), dynamic, change)
	require.ErrorContains(t, err, "must be at most 1h0m0s")
}
