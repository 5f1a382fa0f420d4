// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/provider/registry"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/backend"
	"nstance.dev/operator/pkg/server/storage/s3/s3test"
)

// kwokConfig returns a configuration of a shard of the cluster prod.
func kwokConfig(t *testing.T, shard string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "shard.jsonc"))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), shard+".jsonc")
	require.NoError(t, os.WriteFile(path, []byte(strings.NewReplacer(`"id": "dev"`, `"id": "prod"`, `"id": "us-west-2a"`, `"id": "`+shard+`"`).Replace(string(text))), 0o600))
	return path
}

// keysIn returns the keys of the cluster in a folder, read with a file as the encryption key.
func keysIn(t *testing.T, bucket, keyFile string) *clusterkeys.Keys {
	t.Helper()
	store, err := backend.Open(t.Context(), backend.File, bucket, "")
	require.NoError(t, err)
	loaded, err := clusterkeys.Load(t.Context(), store, openSecrets(t, store, keyFile))
	require.NoError(t, err)
	return loaded
}

func openSecrets(t *testing.T, store storage.Store, keyFile string) *secrets.Encrypted {
	t.Helper()
	key, err := secrets.ReadKey(config.KeySource{File: keyFile})
	require.NoError(t, err)
	opened, err := secrets.New(store, key)
	require.NoError(t, err)
	return opened
}

func TestClusterInitCreatesEverythingOnce(t *testing.T) {
	folder := t.TempDir()
	bucket, keyFile, identity := filepath.Join(folder, "bucket"), filepath.Join(folder, "encryption.key"), filepath.Join(folder, "identity")
	args := []string{
		"cluster", "init", "--storage", "file", "--storage-bucket", bucket, "--cluster-id", "prod", "--key-provider", "file", "--key", keyFile,
		"--config", kwokConfig(t, "zone-a"), "--config", kwokConfig(t, "zone-b"), "--identity-dir", identity, "--nonce-secret", "operator-nonce.env",
	}
	printed := mustRun(t, args...)
	for _, want := range []string{
		"created  encryption key, file " + keyFile, "created  CA and key of nonces of cluster prod", "created  configuration of shard zone-a, object config/zone-a.jsonc",
		"created  configuration of shard zone-b", "created  CA and nonce of the operator", "Keep the encryption key, file " + keyFile,
	} {
		assert.Contains(t, printed, want)
	}
	assert.NotContains(t, printed, "exists")
	wantPrivate(t, keyFile)
	key, err := os.ReadFile(keyFile)
	require.NoError(t, err)
	decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(key)))
	require.NoError(t, err)
	assert.Len(t, decoded, 32)
	made := keysIn(t, bucket, keyFile)
	assert.Equal(t, "prod", made.Authority.CommonName())

	// The operator gets the CA of the servers, and a nonce that they have signed.
	authority, err := os.ReadFile(filepath.Join(identity, "ca.crt"))
	require.NoError(t, err)
	assert.Equal(t, string(made.Authority.CertificatePEM()), string(authority))
	wantPrivate(t, filepath.Join(identity, "nonce.jwt"))
	nonce, err := os.ReadFile(filepath.Join(identity, "nonce.jwt"))
	require.NoError(t, err)
	signed := func(token string) {
		t.Helper()
		_, err := jwt.Parse(token, func(*jwt.Token) (any, error) { return made.Nonce.Public(), nil })
		require.NoError(t, err)
	}
	signed(string(nonce))
	store, err := backend.Open(t.Context(), backend.File, bucket, "")
	require.NoError(t, err)
	seeded, err := openSecrets(t, store, keyFile).Get(t.Context(), "operator-nonce.env")
	require.NoError(t, err)
	token, found := strings.CutPrefix(strings.TrimSpace(string(seeded)), "NONCE=")
	require.True(t, found)
	signed(token)
	assert.Len(t, auditLog(t, store), 3, "two nonces and a secret")
	// The test of the storage is not left there.
	left, err := store.List(t.Context(), "init/")
	require.NoError(t, err)
	assert.Empty(t, left)
	source, err := config.Read(t.Context(), store, "zone-b")
	require.NoError(t, err)
	_, err = source.ParseFor("zone-b", registry.Providers)
	require.NoError(t, err)

	// Again: nothing is replaced but the nonces.
	printed = mustRun(t, args...)
	for _, want := range []string{"exists   encryption key", "exists   CA and key of nonces", "exists   configuration of shard zone-a"} {
		assert.Contains(t, printed, want)
	}
	again, err := os.ReadFile(keyFile)
	require.NoError(t, err)
	assert.Equal(t, key, again)
	assert.Equal(t, made.Authority.CertificatePEM(), keysIn(t, bucket, keyFile).Authority.CertificatePEM())
	assert.Equal(t, made.Nonce, keysIn(t, bucket, keyFile).Nonce)
}

// TestServersUseAnInitializedCluster: the first server takes the keys that exist.
func TestServersUseAnInitializedCluster(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	printed := mustRun(t, append([]string{"cluster", "init", "--cluster-id", "test"}, clusterFlags(s)...)...)
	assert.Contains(t, printed, "exists   CA and key of nonces of cluster test")
	assert.Equal(t, s.Authority.CertificatePEM(), keysIn(t, s.Bucket(), filepath.Join(s.DataDir, "encryption.key")).Authority.CertificatePEM())
}

func TestClusterInitInABucket(t *testing.T) {
	s3test.Start(t, nil)
	s3test.CreateBucket(t, "nstance")
	t.Setenv("NSTANCE_ENCRYPTION_KEY", base64.StdEncoding.EncodeToString(make([]byte, 32)))
	printed := mustRun(t, "cluster", "init", "--storage-bucket", "nstance", "--storage-prefix", "a", "--cluster-id", "prod")
	assert.Contains(t, printed, "created  CA")
	assert.Contains(t, printed, "Keep the encryption key, env NSTANCE_ENCRYPTION_KEY")
	// The nonce needs no server either.
	assert.NotEmpty(t, mustRun(t, "cluster", "nonce", "--storage-bucket", "nstance", "--storage-prefix", "a"))
}

func TestClusterInitRefuses(t *testing.T) {
	folder := t.TempDir()
	bucket, keyFile := filepath.Join(folder, "bucket"), filepath.Join(folder, "encryption.key")
	base := []string{"cluster", "init", "--storage", "file", "--storage-bucket", bucket, "--key-provider", "file"}
	mustRun(t, append(base, "--cluster-id", "prod", "--key", keyFile, "--config", kwokConfig(t, "zone-a"))...)
	changed := kwokConfig(t, "zone-a")
	text, err := os.ReadFile(changed)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(changed, append(text, "// changed\n"...), 0o600))
	broken := filepath.Join(folder, "broken.jsonc")
	require.NoError(t, os.WriteFile(broken, []byte(`{"cluster": {}}`), 0o600))
	otherKey := filepath.Join(folder, "other.key")
	require.NoError(t, os.WriteFile(otherKey, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600))
	before := keysIn(t, bucket, keyFile)
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"no cluster", []string{"--key", keyFile}, []string{"--cluster-id: must be the id of the cluster"}},
		{"another cluster", []string{"--cluster-id", "stage", "--key", keyFile}, []string{`--cluster-id: "stage" must be "prod"`}},
		{"a lost key", []string{"--cluster-id", "prod", "--key", filepath.Join(folder, "lost.key")}, []string{"lost.key does not exist", "copy the key of its servers"}},
		{"another key", []string{"--cluster-id", "prod", "--key", otherKey}, []string{"secret/ca.key"}},
		{"another configuration", []string{"--cluster-id", "prod", "--key", keyFile, "--config", changed}, []string{"config/zone-a.jsonc differs", "--replace-config"}},
		{"an invalid configuration", []string{"--cluster-id", "prod", "--key", keyFile, "--config", broken}, []string{"--config", "broken.jsonc", "cluster.id"}},
		{"a configuration of another cluster", []string{"--cluster-id", "prod", "--key", keyFile, "--config", filepath.Join("..", "..", "docs", "shard.jsonc")}, []string{`cluster.id is "dev"`}},
		{"a nonce in a secret of the servers", []string{"--cluster-id", "prod", "--key", keyFile, "--nonce-secret", "ca.key"}, []string{`--nonce-secret: "ca.key" is a secret of the servers`}},
		{"a nonce that is no file of variables", []string{"--cluster-id", "prod", "--key", keyFile, "--nonce-secret", "nonce"}, []string{"must end with .env"}},
		{"a nonce for too long", []string{"--cluster-id", "prod", "--key", keyFile, "--nonce-expiry", "1000h"}, []string{"--nonce-expiry", "168h"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := run(t, append(base, tc.args...)...)
			wantError(t, err, tc.want...)
			assert.Equal(t, before.Authority.CertificatePEM(), keysIn(t, bucket, keyFile).Authority.CertificatePEM())
		})
	}
	require.NoFileExists(t, filepath.Join(folder, "lost.key"))
	printed := mustRun(t, append(base, "--cluster-id", "prod", "--key", keyFile, "--config", changed, "--replace-config")...)
	assert.Contains(t, printed, "in place of another")
}
