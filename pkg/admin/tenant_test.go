// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"bytes"
	"crypto/ed25519"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/admin"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/backend"
)

func TestNonceOfTheDefaultTenant(t *testing.T) {
	for stored, warns := range map[string]bool{"": false, `{"team": {"workers": {}}}`: true} {
		bucket, key, _ := newBucket(t, "")
		t.Setenv("NSTANCE_ENCRYPTION_KEY", key)
		if stored != "" {
			store, err := backend.Open(t.Context(), backend.File, bucket, "")
			require.NoError(t, err)
			_, err = store.Create(t.Context(), storage.GroupsKey("a"), []byte(stored))
			require.NoError(t, err)
		}
		command := admin.NewCommand()
		var warning bytes.Buffer
		command.SetOut(new(bytes.Buffer))
		command.SetErr(&warning)
		command.SetArgs([]string{"cluster", "nonce", "--storage", "file", "--storage-bucket", bucket})
		require.NoError(t, command.ExecuteContext(t.Context()))
		assert.Equal(t, warns, warning.Len() > 0, warning.String())
	}
}

// A nonce for a misspelled tenant registers an operator that sees no groups.
func TestNonceOfANewTenant(t *testing.T) {
	for name, test := range map[string]struct {
		key, data string
		want      string
	}{
		"nothing is stored":              {"", "", "no other tenant is known"},
		"a static group":                 {storage.ConfigKey("a"), "// a comment\n{\"groups\": {\"team\": {\"workers\": {}}}}", ""},
		"a group of the last accepted":   {storage.AcceptedKey("a"), `{"groups": {"team": {"workers": {}}}}`, ""},
		"a dynamic group":                {storage.GroupsKey("a"), `{"team": {"workers": {}}, "retired_uids": {}}`, ""},
		"an instance":                    {storage.InstanceKey("a", "team", "01"), "{}", ""},
		"an operator":                    {storage.OperatorKey("team", "1"), "{}", ""},
		"a tenant that was adopted":      {storage.TenantKey("team"), "{}", ""},
		"groups of another tenant":       {storage.GroupsKey("a"), `{"teams": {"workers": {}}, "retired_uids": {}}`, "known are teams\n"},
		"a configuration without groups": {storage.ConfigKey("a"), `{}`, "no other tenant is known"},
		"a damaged configuration":        {storage.ConfigKey("a"), `{`, "it is not known whether tenant \"team\" exists: config/a.jsonc"},
	} {
		t.Run(name, func(t *testing.T) {
			bucket, key, made := newBucket(t, "")
			t.Setenv("NSTANCE_ENCRYPTION_KEY", key)
			if test.key != "" {
				store, err := backend.Open(t.Context(), backend.File, bucket, "")
				require.NoError(t, err)
				_, err = store.Create(t.Context(), test.key, []byte(test.data))
				require.NoError(t, err)
			}
			command := admin.NewCommand()
			var output, warning bytes.Buffer
			command.SetOut(&output)
			command.SetErr(&warning)
			command.SetArgs([]string{"cluster", "nonce", "--storage", "file", "--storage-bucket", bucket, "--tenant", "team"})
			require.NoError(t, command.ExecuteContext(t.Context()))
			claims, err := registration.ParseNonce(strings.TrimSpace(output.String()), made.Nonce.Public().(ed25519.PublicKey))
			require.NoError(t, err, "it is issued in any case")
			assert.Equal(t, "team", claims.Tenant)
			if test.want == "" {
				assert.Empty(t, warning.String())
			} else {
				assert.Contains(t, warning.String(), test.want)
			}
		})
	}
}

func TestAdoptTenant(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	folder := register(t, s)
	require.NoError(t, call(t, s, folder, "cluster-1"))
	err := call(t, s, folder, "cluster-2")
	assert.Equal(t, codes.PermissionDenied, status.Code(err), err)
	_, command, ok := strings.Cut(err.Error(), "run nstance-admin ")
	require.True(t, ok, err)
	adopted := mustRun(t, append(strings.Fields(command), storageFlags(s)...)...)
	assert.Contains(t, adopted, "Tenant default belongs to the Kubernetes cluster cluster-2.")
	require.NoError(t, call(t, s, folder, "cluster-2"))
	assert.Equal(t, codes.PermissionDenied, status.Code(call(t, s, folder, "cluster-1")))

	released := mustRun(t, append([]string{"tenant", "adopt", "--tenant", "default", "--release"}, storageFlags(s)...)...)
	assert.Contains(t, released, "Tenant default will belong to the Kubernetes cluster whose operator calls next.")
	require.NoError(t, call(t, s, folder, "cluster-3"))
	assert.Equal(t, codes.PermissionDenied, status.Code(call(t, s, folder, "cluster-2")))
}
