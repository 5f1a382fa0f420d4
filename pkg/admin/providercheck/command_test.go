// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestUsage: nothing is called, and the exit code is 2.
func TestUsage(t *testing.T) {
	twoTemplates := strings.Replace(shardConfig, `"templates": {`, `"templates": {"other": {"kind": "oth", "arch": "arm64", "instance_type": "arm"}, `, 1)
	for _, tc := range []struct {
		name, config string
		args         []string
		want         string
	}{
		{"unknown flag", shardConfig, []string{"--templates", "a"}, "unknown flag: --templates"},
		{"argument", shardConfig, []string{"a"}, `unknown command "a"`},
		{"no configuration", shardConfig, []string{"--config", ""}, "--config: must be the path"},
		{"missing configuration", shardConfig, []string{"--config", "/nothing"}, "--config: read the configuration: open /nothing"},
		{"invalid configuration", strings.Replace(shardConfig, `"prod"`, `"a--b"`, 1), nil, "cluster.id: Invalid value"},
		{"no time", shardConfig, []string{"--timeout", "0s", "--cleanup-timeout", "-1s"}, "--timeout: 0s must be greater than zero\n--cleanup-timeout: -1s must"},
		{"several templates", twoTemplates, nil, `--template: must be one of "other", "worker"`},
		{"unknown template", shardConfig, []string{"--template", "x"}, `--template: "x" is unknown, known are "worker"`},
		{"no pool", twoTemplates, []string{"--template", "other"}, "--subnet: must be given"},
		{"unknown subnet", shardConfig, []string{"--subnet", "x"}, `--subnet: "x" is in no subnet pool`},
		{"unknown type", shardConfig, []string{"--instance-type", "x"}, `--instance-type: Invalid value: "x": no instance type of architecture "amd64"`},
		{"type of another architecture", shardConfig, []string{"--instance-type", "arm"}, `--instance-type: Invalid value: "arm"`},
		{"a market of a provider without markets", shardConfig, []string{"--market", "Spot"}, "--market: provider fake: the provider has no markets: a market must not be named"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.config = tc.config
				assert.Equal(t, 2, w.check(t.Context(), tc.args...), "exit code")
				assert.Contains(t, w.output.String(), tc.want)
				assert.Empty(t, w.begun())
			})
		})
	}
}

// TestSelection: the flags select what is created.
func TestSelection(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.config = strings.Replace(shardConfig, `"templates": {`, `"templates": {"other": {"kind": "oth", "arch": "arm64", "instance_type": "arm"}, `, 1)
		require.Equal(t, 0, w.check(t.Context(), "--template", "worker", "--subnet", "small", "--instance-type", "large"), w.output.String())
		require.Equal(t, 0, w.check(t.Context(), "--template", "other", "--subnet", "subnet"), w.output.String())
		assert.Equal(t, "worker small large", w.requests[0].Template+" "+w.requests[0].Subnet+" "+w.requests[0].Type.Name)
		assert.Equal(t, "other subnet arm", w.requests[1].Template+" "+w.requests[1].Subnet+" "+w.requests[1].Type.Name)
		w.expectOnlyServer()
	})
}
