// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// bucket returns a folder with the configuration of the shard us-west-2a.
func bucket(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "shard.jsonc"))
	require.NoError(t, err)
	folder := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "a", "config"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "a", "config", "us-west-2a.jsonc"), text, 0o600))
	return folder
}

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	// Logging is configured once in a process.
	require.NoError(t, logsapi.ResetForTest(nil))
	command := newCommand()
	var output bytes.Buffer
	command.SetOut(&output)
	command.SetArgs(args)
	err := command.ExecuteContext(t.Context())
	return output.String(), err
}

const valid = "config/us-west-2a.jsonc: shard us-west-2a of cluster dev is valid\n"

// TestFlagsFromTheEnvironment: a unit or a Pod sets variables. A flag has precedence.
func TestFlagsFromTheEnvironment(t *testing.T) {
	for _, args := range [][]string{{"validate"}, {"--validate"}} {
		for name, value := range map[string]string{
			"NSTANCE_SHARD": "us-west-2a", "NSTANCE_STORAGE": "file", "NSTANCE_BUCKET": bucket(t), "NSTANCE_PREFIX": "a", "NSTANCE_LOGGING_FORMAT": "json",
		} {
			t.Setenv(name, value)
		}
		printed, err := run(t, args...)
		require.NoError(t, err)
		assert.Equal(t, valid, printed)
		_, err = run(t, append(args, "--shard", "us-west-2b")...)
		assert.ErrorContains(t, err, "us-west-2b")
	}
}

// TestFlagsHaveTheNamesOfTheOtherProgram too, so that a command line can be copied.
func TestFlagsHaveTheNamesOfTheOtherProgram(t *testing.T) {
	printed, err := run(t, "validate", "--shard", "us-west-2a", "--storage", "file", "--storage-bucket", bucket(t), "--storage-prefix", "a")
	require.NoError(t, err)
	assert.Equal(t, valid, printed)
}

// TestLogsMayBeJSON, as in the operator, so that a system reads both logs.
func TestLogsMayBeJSON(t *testing.T) {
	_, err := run(t, "--logging-format", "json", "--validate="+filepath.Join("..", "..", "docs", "shard.jsonc"))
	require.NoError(t, err)
	_, err = run(t, "--logging-format", "xml", "--validate="+filepath.Join("..", "..", "docs", "shard.jsonc"))
	require.Error(t, err)
}
