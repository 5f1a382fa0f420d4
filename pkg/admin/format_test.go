// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/servertest"
)

// decoded returns what a command prints with -o json.
func decoded(t *testing.T, args ...string) []map[string]string {
	t.Helper()
	var objects []map[string]string
	require.NoError(t, json.Unmarshal([]byte(mustRun(t, append(args, "-o", "json")...)), &objects))
	require.NotNil(t, objects, "an empty list is [], and not null")
	return objects
}

// TestListsAreJSON for scripts, with the columns of the table as names.
func TestListsAreJSON(t *testing.T) {
	s := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 0}}}`})
	operators := append([]string{"operator", "list"}, storageFlags(s)...)
	secrets := append([]string{"secret", "list"}, storageFlags(s)...)
	assert.Empty(t, decoded(t, operators...))
	assert.Empty(t, decoded(t, secrets...))

	identity := register(t, s)
	value := filepath.Join(t.TempDir(), "value")
	require.NoError(t, os.WriteFile(value, []byte("x"), 0o600))
	mustRun(t, append([]string{"secret", "set", "token.env", "--from-file", value}, clusterFlags(s)...)...)
	assert.Equal(t, []map[string]string{{"name": "token.env"}}, decoded(t, secrets...))
	listed := decoded(t, operators...)
	require.Len(t, listed, 1)
	assert.Equal(t, "default", listed[0]["tenant"])
	assert.Equal(t, "valid", listed[0]["state"])
	assert.Contains(t, listed[0], "kubernetesCluster")
	assert.Empty(t, listed[0]["kubernetesCluster"], "it has no value in the table either")

	calls := shardFlags(identity, "us-west-2a="+s.Addr)
	groups := decoded(t, append([]string{"group", "list", "--all-shards"}, calls...)...)
	require.Len(t, groups, 1)
	assert.Equal(t, "main", groups[0]["group"])
	assert.Equal(t, "0", groups[0]["size"])
	assert.Equal(t, "us-west-2a", decoded(t, append([]string{"config", "status", "--all-shards"}, calls...)...)[0]["shard"])

	// Nothing is done with a wrong format.
	_, err := run(t, append([]string{"group", "scale", "main", "5", "--all-shards", "-o", "yaml"}, calls...)...)
	wantError(t, err, `--format: "yaml" is unknown, must be table or json`)
	assert.Equal(t, "0", decoded(t, append([]string{"group", "list", "--all-shards"}, calls...)...)[0]["size"])
}

// TestFlagsHaveTheNamesOfTheServer too, so that a command line can be copied.
func TestFlagsHaveTheNamesOfTheServer(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	assert.Empty(t, decoded(t, "operator", "list", "--storage", "file", "--bucket", s.Bucket(), "--prefix", "a"))
}
