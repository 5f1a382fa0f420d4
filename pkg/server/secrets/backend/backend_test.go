// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package backend_test

import (
	"encoding/base64"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/secrets/backend"
	"nstance.dev/operator/pkg/server/secrets/secretstest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

// TestNoCredentials: secrets in the storage need no credentials of a cloud, and a service
// needs them only for its first call, which shows that the test would see it.
func TestNoCredentials(t *testing.T) {
	connections := secretstest.WatchCredentials(t)
	t.Setenv("KEY", "0123456789abcdef0123456789abcdef")
	objects, err := file.Open(t.TempDir())
	require.NoError(t, err)
	for _, provider := range config.SecretsProviders {
		connections.Store(0)
		c := config.Secrets{Provider: provider, Prefix: config.DefaultSecretsPrefix(provider, "prod"), Project: "project"}
		if provider == config.SecretsInStorage {
			c.EncryptionKey = config.KeySource{Env: "KEY"}
		}
		store, err := backend.Open(t.Context(), c, objects)
		require.NoError(t, err)
		assert.Zero(t, connections.Load(), "connections while the secrets of %s are opened", provider)
		_, err = store.Get(t.Context(), storage.AuthoritySecret)
		require.Error(t, err)
		if provider == config.SecretsInStorage {
			require.ErrorIs(t, err, storage.ErrNotFound)
			assert.Zero(t, connections.Load(), "connections while a secret in the storage is read")
			continue
		}
		require.NotErrorIs(t, err, storage.ErrNotFound)
		assert.NotZero(t, connections.Load(), "connections while a secret of %s is read", provider)
	}
}

// TestKeyOfKMS: a server whose key AWS KMS decrypts calls it once, in the region of the key.
// An error names the field, and ends the start: the request was repeated before.
func TestKeyOfKMS(t *testing.T) {
	k := secretstest.StartKMS(t)
	k.SetKey("1", secretstest.KeyEnabled, "nstance")
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL_KMS": k.URL, "AWS_REGION": "eu-north-1", "AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "secret",
	} {
		t.Setenv(name, value)
	}
	t.Setenv("KEY", "0123456789abcdef0123456789abcdef")
	objects, err := file.Open(t.TempDir())
	require.NoError(t, err)
	encrypt := func(plaintext string) config.KeySource {
		key := &config.KMSKey{KeyID: "alias/nstance", Region: "us-east-1", Cluster: "prod"}
		key.Ciphertext = base64.StdEncoding.EncodeToString(k.Encrypt("1", key.EncryptionContext(), []byte(plaintext)))
		return config.KeySource{KMS: key}
	}
	inEnv := config.Secrets{Provider: config.SecretsInStorage, EncryptionKey: config.KeySource{Env: "KEY"}}
	store, err := backend.Open(t.Context(), inEnv, objects)
	require.NoError(t, err)
	require.NoError(t, store.Create(t.Context(), "a", []byte("hunter2")))
	assert.Zero(t, k.Faults.Count())

	inKMS := config.Secrets{Provider: config.SecretsInStorage, EncryptionKey: encrypt(os.Getenv("KEY"))}
	store, err = backend.Open(t.Context(), inKMS, objects)
	require.NoError(t, err)
	got, err := store.Get(t.Context(), "a")
	require.NoError(t, err)
	assert.Equal(t, "hunter2", string(got))
	assert.Equal(t, 1, k.Faults.Count())

	// Another key replaces it, and the old key decrypts.
	inKMS.OldEncryptionKeys, inKMS.EncryptionKey = []config.KeySource{inKMS.EncryptionKey}, encrypt("fedcba9876543210fedcba9876543210")
	store, err = backend.Open(t.Context(), inKMS, objects)
	require.NoError(t, err)
	got, err = store.Get(t.Context(), "a")
	require.NoError(t, err)
	assert.Equal(t, "hunter2", string(got))

	k.Faults.Set(secretstest.Denied, 1, 1)
	_, err = backend.Open(t.Context(), inKMS, objects)
	require.ErrorContains(t, err, "cluster.secrets.old_encryption_keys[0]): read the key for secrets: aws_kms: decrypt")
	require.ErrorContains(t, err, "is not authorized")
	inKMS.EncryptionKey = encrypt("hunter2")
	_, err = backend.Open(t.Context(), inKMS, objects)
	require.ErrorContains(t, err, "cluster.secrets.encryption_key): read the key for secrets from aws_kms ciphertext")
	require.ErrorContains(t, err, "it has 7 bytes")
	require.NotContains(t, err.Error(), "hunter2")
	inKMS.EncryptionKey.KMS.Region = "eu-west-1"
	_, err = backend.Open(t.Context(), inKMS, objects)
	require.ErrorContains(t, err, "InvalidSignatureException", "the request is for the region of the key")
}

// TestUnknownProvider: a configuration is validated, and the error is not silent.
func TestUnknownProvider(t *testing.T) {
	_, err := backend.Open(t.Context(), config.Secrets{Provider: "vault"}, nil)
	require.ErrorContains(t, err, `"vault" is unknown`)
}
