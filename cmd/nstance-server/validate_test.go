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
)

// validate runs the command with arguments.
func validate(t *testing.T, args ...string) (output string, err error) {
	t.Helper()
	command := newCommand()
	var buffer bytes.Buffer
	command.SetOut(&buffer)
	command.SetArgs(append([]string{"validate"}, args...))
	err = command.ExecuteContext(t.Context())
	return buffer.String(), err
}

func TestValidateCommand(t *testing.T) {
	example := filepath.Join("..", "..", "docs", "shard.jsonc")
	output, err := validate(t, example)
	require.NoError(t, err)
	assert.Contains(t, output, "is valid")

	invalid := filepath.Join(t.TempDir(), "invalid.jsonc")
	require.NoError(t, os.WriteFile(invalid, []byte(`{"shard": {"id": "A"}}`), 0o600))
	_, err = validate(t, invalid)
	require.ErrorContains(t, err, `shard.id: Invalid value: "A"`)
	require.ErrorContains(t, err, "cluster.id")

	bucket := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(bucket, "config"), 0o700))
	data, err := os.ReadFile(example)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(bucket, "config", "us-west-2a.jsonc"), data, 0o600))
	output, err = validate(t, "--shard", "us-west-2a", "--storage", "file", "--bucket", bucket)
	require.NoError(t, err)
	assert.Contains(t, output, "config/us-west-2a.jsonc: shard us-west-2a")

	_, err = validate(t)
	require.ErrorContains(t, err, "FILE or --shard")
	_, err = validate(t, "a", "b")
	require.Error(t, err)
}
