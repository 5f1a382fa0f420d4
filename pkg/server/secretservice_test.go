// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/secrets/secretsmanager"
	"nstance.dev/operator/pkg/server/secrets/secretstest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
)

// TestSecretsInAService: the leader creates the keys of the cluster in AWS Secrets Manager,
// and none in the storage.
func TestSecretsInAService(t *testing.T) {
	url, _ := secretstest.StartSecretsManager(t)
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL_SECRETS_MANAGER": url, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "secret",
	} {
		t.Setenv(name, value)
	}
	s := servertest.Prepare(t, servertest.Options{})
	require.NoError(t, os.RemoveAll(filepath.Join(s.Bucket(), "secret")))
	require.NoError(t, s.Storage.Delete(t.Context(), storage.AuthorityKey))
	data, err := os.ReadFile(s.ConfigPath())
	require.NoError(t, err)
	inStorage := regexp.MustCompile(`"provider": "object-storage", "encryption_key": \{[^}]*\}`)
	require.Regexp(t, inStorage, string(data))
	require.NoError(t, os.WriteFile(s.ConfigPath(), inStorage.ReplaceAll(data, []byte(`"provider": "aws-secrets-manager"`)), 0o600))

	s.Launch()
	s.UntilListening()
	s.UntilHealthy()
	store := secretsmanager.New(secretstest.AWSConfig(url), "nstance/"+servertest.ClusterID+"/")
	list, err := store.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{storage.AuthoritySecret, storage.NonceSecret}, list)
	_, err = clusterkeys.Load(t.Context(), s.Storage, store)
	require.NoError(t, err)
	objects, err := s.Storage.List(t.Context(), storage.SecretPrefix)
	require.NoError(t, err)
	assert.Empty(t, objects)
}

// TestNoCredentials: a server without a cloud in its configuration looks up no credentials of
// one.
func TestNoCredentials(t *testing.T) {
	connections := secretstest.WatchCredentials(t)
	s := servertest.Start(t, servertest.Options{})
	s.Stop()
	assert.Zero(t, connections.Load(), "connections of a server")
	require.NoError(t, server.Validate(t.Context(), server.Options{}, filepath.Join("..", "..", "docs", "shard.jsonc"), io.Discard))
	assert.Zero(t, connections.Load(), "connections while a configuration is validated")
}
