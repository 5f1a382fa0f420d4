// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"text/template"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/agent"
	"nstance.dev/operator/pkg/base/flagenv"
)

// The sample is rendered as servers render userdata. An agent starts with the files that it
// writes.
func TestUserdataSample(t *testing.T) {
	const path = "../../manifests/agent/userdata.sh"
	sample, err := template.New("userdata").Option("missingkey=error").ParseFiles(path)
	require.NoError(t, err)
	var script bytes.Buffer
	require.NoError(t, sample.ExecuteTemplate(&script, "userdata.sh", map[string]any{
		"Instance": map[string]string{"ID": "knc06bgm7733st2576nx5jht4ecjw", "Kind": "knc"},
		"Cluster":  map[string]string{"ID": "test", "CACert": "-----BEGIN CERTIFICATE-----"},
		"Server":   map[string]string{"Shard": "a", "RegistrationAddr": "10.0.0.1:8992", "AgentAddr": "10.0.0.1:8994", "HealthCheckInterval": "1m0s"},
		"Provider": map[string]string{"Kind": "aws"},
		"Nonce":    "SECRET",
	}))

	// It runs in a folder instead of /, without systemd.
	folder := t.TempDir()
	require.NoError(t, os.Mkdir(folder+"/etc", 0o755))
	text := strings.NewReplacer("/opt/", folder+"/opt/", "/etc/", folder+"/etc/", "systemctl ", "echo ").Replace(script.String())
	output, err := exec.Command("sh", "-c", text).CombinedOutput()
	require.NoError(t, err, string(output))
	nonce, err := os.ReadFile(folder + "/opt/nstance-agent/identity/nonce.jwt")
	require.NoError(t, err)
	assert.Equal(t, "SECRET\n", string(nonce))
	info, err := os.Stat(folder + "/opt/nstance-agent/identity/nonce.jwt")
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode())

	environment, err := os.ReadFile(folder + "/etc/nstance-agent.env")
	require.NoError(t, err)
	assert.NotContains(t, string(environment), "SECRET")
	variables := map[string]string{}
	for line := range strings.Lines(string(environment)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		variables[name] = value
	}
	options := agent.DefaultOptions()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	options.AddFlags(flags)
	used := map[string]bool{}
	require.NoError(t, flagenv.Set(flags, func(name string) (string, bool) {
		value, ok := variables[name]
		used[name] = ok
		return value, ok
	}))
	require.NoError(t, options.Validate())
	for name := range variables {
		assert.True(t, used[name], "%s is no option", name)
	}
}

// Every option is in the document.
func TestOptionsAreDocumented(t *testing.T) {
	document, err := os.ReadFile("../../docs/agent.md")
	require.NoError(t, err)
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	agent.DefaultOptions().AddFlags(flags)
	flags.VisitAll(func(flag *pflag.Flag) {
		assert.Contains(t, string(document), "`--"+flag.Name+"`")
	})
}
