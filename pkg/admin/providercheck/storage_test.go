// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/secrets/googlesecrets"
	"nstance.dev/operator/pkg/server/secrets/secretstest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/backend"
	"nstance.dev/operator/pkg/server/storage/file"
	"nstance.dev/operator/pkg/server/storage/gcs/gcstest"
)

// askStorage asks all questions about a storage that has an object of a server and one of a check
// that was killed.
func askStorage(t *testing.T, kind string, store storage.Store) map[string]string {
	t.Helper()
	for _, key := range []string{"ca.crt", "check--prod/a/conditions", "check--prod/b/conditions"} {
		_, err := store.Create(t.Context(), key, []byte("data"))
		require.NoError(t, err)
	}
	e := newStorageExamination(kind, store, "check--prod/a/")
	removed, err := e.CleanUp(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"check--prod/a/conditions"}, removed)
	results := providertest.Ask(t, e, providertest.NewTrial(provider.Spec{}, instance.VM{}, nil))
	list, err := store.List(t.Context(), "")
	require.NoError(t, err)
	var keys []string
	for _, object := range list {
		keys = append(keys, object.Key)
	}
	assert.Equal(t, []string{"ca.crt", "check--prod/b/conditions"}, keys, "objects of others")
	return results
}

func TestStorageQuestions(t *testing.T) {
	files, err := file.Open(t.TempDir())
	require.NoError(t, err)
	assert.Equal(t, map[string]string{
		"conditional writes, of an object that exists, was replaced or is missing": "as expected: exists: conflict, replaced: conflict, missing: conflict, created after its deletion: written",
		"conditional writes, 20 writes of the same version at once":                "as expected: 1 were written, 19 conflicts, 0 other errors",
	}, askStorage(t, backend.S3, files))

	t.Setenv("STORAGE_EMULATOR_HOST", gcstest.Start(t, nil, "nstance").URL)
	store, err := backend.Open(t.Context(), backend.GCS, "nstance", "")
	require.NoError(t, err)
	results := askStorage(t, backend.GCS, store)
	assert.Len(t, results, 1)
	assert.Regexp(t, "^as expected: generation [0-9]+, the write has [0-9]+; last write at 20", results["reads of objects"])
}

// careless is a storage that ignores the conditions of writes.
type careless struct {
	storage.Store
	mu sync.Mutex
}

func (c *careless) Create(ctx context.Context, key string, data []byte) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.Delete(ctx, key); err != nil {
		return "", err
	}
	return c.Store.Create(ctx, key, data)
}

func (c *careless) Replace(ctx context.Context, key string, data []byte, _ string) (string, error) {
	return c.Create(ctx, key, data)
}

// TestAStorageWithoutConditions is noticed: two servers would lead.
func TestAStorageWithoutConditions(t *testing.T) {
	files, err := file.Open(t.TempDir())
	require.NoError(t, err)
	results := askStorage(t, backend.S3, &careless{Store: files})
	for _, title := range slices.Sorted(maps.Keys(results)) {
		assert.Contains(t, results[title], "differs: ", title)
	}
}

func TestSecretQuestions(t *testing.T) {
	for _, lags := range []bool{false, true} {
		url, _ := secretstest.StartGoogleWith(t, secretstest.GoogleOptions{Lags: lags})
		transport := googleapi.WithToken(http.DefaultTransport, oauth2.StaticTokenSource(&oauth2.Token{AccessToken: secretstest.GoogleToken}))
		open := func(prefix string) secrets.Store {
			return googlesecrets.New(googlesecrets.Options{Project: secretstest.GoogleProject, Prefix: prefix, Transport: transport, Endpoint: url})
		}
		server := open("nstance-prod__")
		require.NoError(t, server.Set(t.Context(), "join.json", []byte("a secret of the servers")))
		e := newSecretExamination(func() (secrets.Store, error) { return open("nstance-check--prod__"), nil })
		results := providertest.Ask(t, e, providertest.NewTrial(provider.Spec{}, instance.VM{}, nil))
		assert.Regexp(t, "^as expected: the first version was read after .+, the second version after ", results["versions of secrets"])
		check := open("nstance-check--prod__")
		for store, want := range map[secrets.Store][]string{server: {"join.json"}, check: nil} {
			names, err := store.List(t.Context())
			require.NoError(t, err)
			assert.ElementsMatch(t, want, names)
		}
	}
}
