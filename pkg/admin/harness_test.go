// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/admin"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
)

// run runs the command as main does, and returns its output.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	command := admin.NewCommand()
	var output bytes.Buffer
	command.SetOut(&output)
	command.SetArgs(args)
	err := command.ExecuteContext(t.Context())
	return output.String(), err
}

// mustRun runs a command that must succeed.
func mustRun(t *testing.T, args ...string) string {
	t.Helper()
	output, err := run(t, args...)
	require.NoError(t, err, "nstance-admin %s", strings.Join(args, " "))
	return output
}

// clusterFlags returns the flags for the keys of the cluster of a server.
func clusterFlags(s *servertest.Server) []string {
	return []string{
		"--storage", "file", "--storage-bucket", s.Bucket(),
		"--key-provider", "file", "--key", filepath.Join(s.DataDir, "encryption.key"),
	}
}

// register returns a folder with an identity that the server issued.
func register(t *testing.T, s *servertest.Server) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "identity")
	mustRun(t, append([]string{"cluster", "register-operator", "--registration", s.RegistrationAddr, "--identity-dir", folder}, clusterFlags(s)...)...)
	return folder
}

// shardFlags returns the flags for calling servers, each "shard=host:port".
func shardFlags(identity string, servers ...string) []string {
	return []string{"--identity-dir", identity, "--servers", strings.Join(servers, ",")}
}

// auditLog returns what the audit log has about a command, without the times: action, name,
// tenant, client and reason.
func auditLog(t *testing.T, store storage.Store) []string {
	t.Helper()
	infos, err := store.List(t.Context(), "audit-log/cluster/")
	require.NoError(t, err)
	var lines []string
	for _, info := range infos {
		object, err := store.Get(t.Context(), info.Key)
		require.NoError(t, err)
		var entry auditlog.Entry
		require.NoError(t, json.Unmarshal(object.Data, &entry))
		if strings.HasPrefix(entry.Reason, "registration") {
			continue // of the server
		}
		assert.Regexp(t, "^nstance-admin, .+@.+$", entry.Writer)
		lines = append(lines, fmt.Sprintf("%s %q of %s/%s: %s", entry.Action, entry.Name, entry.Tenant, entry.Client, entry.Reason))
	}
	return lines
}

func wantError(t *testing.T, err error, wants ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("it succeeded, want an error with %q", wants)
	}
	for _, want := range wants {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got error %q, want %q in it", err, want)
		}
	}
}
