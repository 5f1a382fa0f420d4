// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/backend"
	"nstance.dev/operator/pkg/server/storage/s3/s3test"
)

// newBucket returns a folder with the keys of a cluster, and the encryption key.
func newBucket(t *testing.T, prefix string) (bucket, key string, made *clusterkeys.Keys) {
	t.Helper()
	bucket = t.TempDir()
	store, err := backend.Open(t.Context(), backend.File, bucket, prefix)
	require.NoError(t, err)
	key, made = makeKeys(t, store)
	return bucket, key, made
}

func makeKeys(t *testing.T, store storage.Store) (key string, made *clusterkeys.Keys) {
	t.Helper()
	encryption := bytes.Repeat([]byte{200}, 32)
	encrypted, err := secrets.New(store, encryption)
	require.NoError(t, err)
	made, err = clusterkeys.Ensure(t.Context(), store, encrypted, "prod")
	require.NoError(t, err)
	return base64.StdEncoding.EncodeToString(encryption), made
}

func TestNonce(t *testing.T) {
	bucket, key, made := newBucket(t, "nstance")
	store, err := backend.Open(t.Context(), backend.File, bucket, "nstance")
	require.NoError(t, err)
	keyFile := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(keyFile, []byte(key+"\n"), 0o600))
	t.Setenv("NSTANCE_ENCRYPTION_KEY", key)
	t.Setenv("ANOTHER_KEY", key)
	t.Setenv("NEXT_KEY", base64.StdEncoding.EncodeToString(make([]byte, 32)))
	tests := []struct {
		name              string
		flags             []string
		clusterID, tenant string
		lifetime          time.Duration
	}{
		{"defaults", nil, "prod", "default", 3 * time.Hour},
		{"key from the environment", []string{"--key-provider", "env"}, "prod", "default", 3 * time.Hour},
		{"key from a variable of another name", []string{"--key", "ANOTHER_KEY"}, "prod", "default", 3 * time.Hour},
		{"new key and old ones", []string{"--key", "NEXT_KEY", "--old-key", "NEXT_KEY", "--old-key", "ANOTHER_KEY"}, "prod", "default", 3 * time.Hour},
		{"key from a file", []string{"--key-provider", "file", "--key", keyFile}, "prod", "default", 3 * time.Hour},
		{"expiry", []string{"--expiry", "1h"}, "prod", "default", time.Hour},
		{"tenant", []string{"--tenant", "a"}, "prod", "a", 3 * time.Hour},
		{"cluster", []string{"--cluster-id", "stage"}, "stage", "default", 3 * time.Hour},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			before := time.Now()
			args := append([]string{"cluster", "nonce", "--storage", "file", "--storage-bucket", bucket, "--storage-prefix", "nstance"}, tc.flags...)
			token, found := strings.CutSuffix(mustRun(t, args...), "\n")
			claims, err := registration.ParseNonce(token, made.Nonce.Public().(ed25519.PublicKey))
			if err != nil || !found {
				t.Fatalf("printed %q: %v", token, err)
			}
			want := registration.NonceClaims{Kind: "operator", Subject: tc.clusterID, ClusterID: tc.clusterID, Tenant: tc.tenant, CreatedAt: claims.CreatedAt, ExpiresAt: claims.ExpiresAt}
			if claims != want {
				t.Errorf("got  %+v\nwant %+v", claims, want)
			}
			entries := auditLog(t, store)
			require.NotEmpty(t, entries)
			assert.Equal(t, fmt.Sprintf("Audit: issue nonce %q of %s/%s: command", storage.OperatorNonceKey(token), tc.tenant, tc.clusterID), entries[len(entries)-1])
			if lifetime := claims.ExpiresAt.Sub(before); lifetime < tc.lifetime-time.Second || lifetime > tc.lifetime+time.Minute {
				t.Errorf("it is valid for %s, want %s", lifetime, tc.lifetime)
			}
		})
	}
}

// TestNonceAsDocumented runs the commands of docs/server.md#registration.
func TestNonceAsDocumented(t *testing.T) {
	s3test.Start(t, nil)
	s3test.CreateBucket(t, "my-bucket")
	store, err := backend.Open(t.Context(), backend.S3, "my-bucket", "")
	require.NoError(t, err)
	key, made := makeKeys(t, store)
	t.Setenv("NSTANCE_ENCRYPTION_KEY", key)
	for _, line := range []string{
		"cluster nonce --storage-bucket my-bucket --key-provider env",
		"cluster nonce --storage-bucket my-bucket --key-provider env --expiry 1h",
	} {
		token := strings.TrimSpace(mustRun(t, strings.Fields(line)...))
		if _, err := registration.ParseNonce(token, made.Nonce.Public().(ed25519.PublicKey)); err != nil {
			t.Errorf("nstance-admin %s: %v", line, err)
		}
	}
}

func TestCA(t *testing.T) {
	bucket, key, made := newBucket(t, "")
	t.Setenv("NSTANCE_ENCRYPTION_KEY", key)
	args := []string{"cluster", "ca", "--storage", "file", "--storage-bucket", bucket}
	assert.Equal(t, string(made.Authority.CertificatePEM()), mustRun(t, args...))
	path := filepath.Join(t.TempDir(), "ca.crt")
	mustRun(t, append(args, "--output", path)...)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(made.Authority.CertificatePEM()), string(data))
	_, err = run(t, append(args, "--output", "")...)
	wantError(t, err, "--output")
}

func TestNonceToAFile(t *testing.T) {
	bucket, key, made := newBucket(t, "")
	t.Setenv("NSTANCE_ENCRYPTION_KEY", key)
	output := filepath.Join(t.TempDir(), "nonce.jwt")
	require.NoError(t, os.WriteFile(output, []byte("what was here before"), 0o644))
	args := []string{"cluster", "nonce", "--storage", "file", "--storage-bucket", bucket, "--output", output}
	if printed := mustRun(t, args...); printed != "" {
		t.Errorf("printed %q", printed)
	}
	// Without a line break, which would become part of a Secret.
	token, err := os.ReadFile(output)
	require.NoError(t, err)
	if _, err := registration.ParseNonce(string(token), made.Nonce.Public().(ed25519.PublicKey)); err != nil {
		t.Error(err)
	}
	wantPrivate(t, output)
}

// wantPrivate checks that only the owner may read a file.
func wantPrivate(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), "the mode of %s", path)
}

func TestNonceNeedsTheKeysOfTheCluster(t *testing.T) {
	bucket, key, _ := newBucket(t, "")
	t.Setenv("NSTANCE_ENCRYPTION_KEY", key)
	t.Setenv("WRONG_KEY", base64.StdEncoding.EncodeToString(make([]byte, 32)))
	t.Setenv("SHORT_KEY", "hunter2")
	output := filepath.Join(t.TempDir(), "missing", "nonce.jwt")
	for _, tc := range []struct {
		name  string
		flags []string
		want  []string
	}{
		{"empty bucket", []string{"--storage-bucket", t.TempDir()}, []string{"--storage-bucket", "has no keys of a cluster, the first server that starts makes them"}},
		{"no bucket", []string{"--storage-bucket", "/nothing/here"}, []string{"--storage-bucket: open the storage", "/nothing/here"}},
		{"no key", []string{"--storage-bucket", bucket, "--key", "NO_KEY"}, []string{"--key", "NO_KEY is not set"}},
		{"short key", []string{"--storage-bucket", bucket, "--key", "SHORT_KEY"}, []string{"--key", "it has 7 bytes, must be 32"}},
		{"wrong key", []string{"--storage-bucket", bucket, "--key", "WRONG_KEY"}, []string{"secret/ca.key"}},
		{"missing key file", []string{"--storage-bucket", bucket, "--key-provider", "file", "--key", "/nothing/here"}, []string{"--key", "/nothing/here"}},
		{"output in a missing folder", []string{"--storage-bucket", bucket, "--output", output}, []string{"--output", output}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			printed, err := run(t, append([]string{"cluster", "nonce", "--storage", "file"}, tc.flags...)...)
			wantError(t, err, tc.want...)
			if strings.Contains(err.Error(), "hunter2") || printed != "" {
				t.Errorf("printed %q, and the error is %v", printed, err)
			}
			if strings.Contains(err.Error(), "--bucket") {
				t.Errorf("the error names a flag that does not exist: %v", err)
			}
		})
	}
}

func TestRegisterOperator(t *testing.T) {
	s := servertest.Start(t, servertest.Options{Groups: `{"a": {"main": {"template": "worker", "size": 0}}}`})
	folder := filepath.Join(t.TempDir(), "new", "identity")
	args := append([]string{"cluster", "register-operator", "--tenant", "a", "--registration", s.RegistrationAddr}, clusterFlags(s)...)
	// The environment may name the folder.
	t.Setenv("NSTANCE_ADMIN_IDENTITY_DIR", folder)
	printed := mustRun(t, args...)
	if !strings.Contains(printed, "Registered as the operator of tenant a in cluster test") {
		t.Errorf("printed %q", printed)
	}
	read := func(name string) string {
		t.Helper()
		path := filepath.Join(folder, name)
		wantPrivate(t, path)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(data)
	}
	key, certificate := read("identity.key"), read("identity.crt")
	if read("ca.crt") != string(s.Authority.CertificatePEM()) {
		t.Error("ca.crt is not the authority of the cluster")
	}
	// The identity may call the operator's methods in its tenant.
	if printed := mustRun(t, "group", "list", "--all-shards", "--servers", "us-west-2a="+s.Addr); !strings.Contains(printed, "main") {
		t.Errorf("printed %q", printed)
	}
	// Again, for the next certificate.
	mustRun(t, args...)
	if read("identity.key") != key || read("identity.crt") == certificate {
		t.Error("want the same key and another certificate")
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != 3 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
}

func TestRegistrationsThatFail(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	broken := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(broken, "identity.key"), []byte("not a key"), 0o600))
	folder := filepath.Join(t.TempDir(), "identity")
	base := append([]string{"cluster", "register-operator"}, clusterFlags(s)...)
	for _, tc := range []struct {
		name  string
		flags []string
		want  []string
	}{
		{"another cluster", []string{"--identity-dir", folder, "--registration", s.RegistrationAddr, "--cluster-id", "stage"}, []string{"InvalidArgument", `it is for cluster "stage", this is "test"`}},
		{"an address for something else", []string{"--identity-dir", folder, "--registration", s.HealthAddr}, []string{"register at " + s.HealthAddr, "Unavailable"}},
		{"a key that is none", []string{"--identity-dir", broken, "--registration", s.RegistrationAddr}, []string{"--identity-dir", "identity.key", "no PEM block"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := run(t, append(base, tc.flags...)...)
			wantError(t, err, tc.want...)
			if _, err := os.Stat(filepath.Join(folder, "identity.crt")); !os.IsNotExist(err) {
				t.Errorf("there is a certificate: %v", err)
			}
		})
	}
	if data, err := os.ReadFile(filepath.Join(broken, "identity.key")); err != nil || string(data) != "not a key" {
		t.Errorf("the key has been replaced: %q, %v", data, err)
	}
}
