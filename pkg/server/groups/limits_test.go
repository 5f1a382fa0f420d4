// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"testing"

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
