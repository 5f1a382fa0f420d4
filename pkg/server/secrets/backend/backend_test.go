// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package backend_test

import (
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
// none before its first call, which shows that the test would see it.
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

// TestUnknownProvider: a configuration is validated, and the error is not silent.
func TestUnknownProvider(t *testing.T) {
	_, err := backend.Open(t.Context(), config.Secrets{Provider: "vault"}, nil)
	require.ErrorContains(t, err, `"vault" is unknown`)
}
