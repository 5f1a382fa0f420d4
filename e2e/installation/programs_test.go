// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
)

// TestPrograms runs the commands of the programs that need no cluster.
func TestPrograms(t *testing.T) {
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	builder := controlplane.Builder{Root: root, Progress: os.Stderr}
	operator, server, err := builder.Product(t.Context())
	require.NoError(t, err)
	agent, _, err := builder.Agents(t.Context())
	require.NoError(t, err)
	admin, err := builder.Admin(t.Context())
	require.NoError(t, err)
	plugin, err := builder.Plugin(t.Context())
	require.NoError(t, err)
	marekvs, err := builder.Marekvs(t.Context())
	require.NoError(t, err)

	for _, program := range []string{operator, server, agent, admin, plugin, marekvs} {
		name := filepath.Base(program)
		t.Run(name+" prints its version", func(t *testing.T) {
			stdout, _, err := runProgram(program, "--version")
			require.NoError(t, err)
			assert.Contains(t, stdout, name+", version ")
		})
	}
	t.Run("the definition that marekvs-operator prints is the one that is installed", func(t *testing.T) {
		shipped, err := os.ReadFile(filepath.Join(root, "manifests", "marekvs", "crd", "marekvs.io_marekvsclusters.yaml"))
		require.NoError(t, err)
		printed, _, err := runProgram(marekvs, "crd")
		require.NoError(t, err)
		assert.Equal(t, string(shipped), printed)
	})
	t.Run("nstance-server validates a configuration", func(t *testing.T) {
		testValidate(t, server, filepath.Join(root, "docs", "shard.jsonc"))
	})
}

// runProgram runs a program until it exits.
func runProgram(program string, args ...string) (stdout, stderr string, err error) {
	var out, messages bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &out, &messages
	err = cmd.Run()
	return out.String(), messages.String(), err
}

// testValidate validates an example, which is valid, and invalid variants.
func testValidate(t *testing.T, server, example string) {
	stdout, stderr, err := runProgram(server, "validate", example)
	require.NoError(t, err, stderr)
	assert.Contains(t, stdout, "is valid")

	invalid := filepath.Join(t.TempDir(), "invalid.jsonc")
	require.NoError(t, os.WriteFile(invalid, []byte(`{"shard": {"id": "A"}}`), 0o600))
	_, stderr, err = runProgram(server, "validate", invalid)
	require.Error(t, err)
	assert.Contains(t, stderr, `shard.id: Invalid value: "A"`)
	assert.Contains(t, stderr, "cluster.id")

	bucket := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(bucket, "config"), 0o700))
	data, err := os.ReadFile(example)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(bucket, "config", "us-west-2a.jsonc"), data, 0o600))
	stdout, stderr, err = runProgram(server, "validate", "--shard", "us-west-2a", "--storage", "file", "--bucket", bucket)
	require.NoError(t, err, stderr)
	assert.Contains(t, stdout, "config/us-west-2a.jsonc: shard us-west-2a")

	_, stderr, err = runProgram(server, "validate")
	require.Error(t, err)
	assert.Contains(t, stderr, "FILE or --shard")
	_, stderr, err = runProgram(server, "validate", "a", "b")
	require.Error(t, err)
	assert.Contains(t, stderr, "at most 1 arg")
}
