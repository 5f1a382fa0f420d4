// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/admin"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
)

// TestSecrets: the server reads what the command has stored, and the storage has it
// encrypted.
func TestSecrets(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	bucket := []string{"--storage", "file", "--storage-bucket", s.Bucket()}
	file := filepath.Join(t.TempDir(), "value")
	set := func(name string) (string, error) {
		return run(t, append([]string{"secret", "set", name, "--from-file", file}, clusterFlags(s)...)...)
	}
	list := append([]string{"secret", "list"}, bucket...)
	assert.Empty(t, mustRun(t, list...))

	for _, value := range []string{"first value", "second value"} {
		require.NoError(t, os.WriteFile(file, []byte(value), 0o600))
		output, err := set("tokens/database.json")
		require.NoError(t, err)
		assert.NotContains(t, output, value)
		stored, err := s.Secrets.Get(t.Context(), "tokens/database.json")
		require.NoError(t, err)
		assert.Equal(t, value, string(stored))
		object, err := s.Storage.Get(t.Context(), storage.SecretPrefix+"tokens/database.json")
		require.NoError(t, err)
		assert.NotContains(t, string(object.Data), "value")
	}
	_, err := set("another.env")
	require.NoError(t, err)
	assert.Equal(t, "another.env\ntokens/database.json\n", mustRun(t, list...))

	mustRun(t, append([]string{"secret", "delete", "another.env"}, bucket...)...)
	assert.Equal(t, "tokens/database.json\n", mustRun(t, list...))
	_, err = run(t, append([]string{"secret", "delete", "another.env"}, bucket...)...)
	require.ErrorIs(t, err, storage.ErrNotFound)

	// A key that is not that of the cluster would store what no server can read.
	other := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(other, bytes.Repeat([]byte{7}, 32), 0o600))
	_, err = run(t, append(bucket, "secret", "set", "x", "--from-file", file, "--key-provider", "file", "--key", other)...)
	wantError(t, err, "keys of the cluster")
	assert.Equal(t, "tokens/database.json\n", mustRun(t, list...))
}

// TestSecretFromStandardInput reads the value that a pipe has.
func TestSecretFromStandardInput(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	command := admin.NewCommand()
	command.SetOut(new(strings.Builder))
	command.SetIn(strings.NewReader("piped"))
	command.SetArgs(append([]string{"secret", "set", "a", "--from-file", "-"}, clusterFlags(s)...))
	require.NoError(t, command.ExecuteContext(t.Context()))
	stored, err := s.Secrets.Get(t.Context(), "a")
	require.NoError(t, err)
	assert.Equal(t, "piped", string(stored))
}

// TestSecretsThatAreRefused: names of the servers' own keys, and values that no file can
// have.
func TestSecretsThatAreRefused(t *testing.T) {
	large := filepath.Join(t.TempDir(), "large")
	require.NoError(t, os.WriteFile(large, make([]byte, 1<<20+1), 0o600))
	for name, test := range map[string]struct {
		args  []string
		wants []string
	}{
		"no file":             {[]string{"set", "a"}, []string{"--from-file: must be the path"}},
		"the key of the CA":   {[]string{"set", "ca.key", "--from-file", "x"}, []string{`NAME: "ca.key" is a key of the servers`}},
		"the key of nonces":   {[]string{"delete", "registration-nonce.key"}, []string{"is a key of the servers"}},
		"another folder":      {[]string{"set", "../ca.key", "--from-file", "x"}, []string{"NAME:"}},
		"an empty value":      {[]string{"set", "a", "--from-file", os.DevNull}, []string{"--from-file: the value is empty"}},
		"a value too large":   {[]string{"set", "a", "--from-file", large}, []string{"more than 1048576 bytes"}},
		"a value as argument": {[]string{"set", "a", "value"}, []string{"accepts 1 arg(s)"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, append([]string{"secret", "--storage-bucket", "b"}, test.args...)...)
			wantError(t, err, test.wants...)
		})
	}
	_, err := run(t, "secret", "list")
	wantError(t, err, "--storage-bucket")
}
