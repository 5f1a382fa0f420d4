// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clusterinit

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

// careless is a storage without one of the conditional writes.
type careless struct {
	storage.Store
	create, replace bool
}

func (c careless) Create(ctx context.Context, key string, data []byte) (string, error) {
	etag, err := c.Store.Create(ctx, key, data)
	if err != nil && c.create {
		return "1", nil
	}
	return etag, err
}

func (c careless) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	newETag, err := c.Store.Replace(ctx, key, data, etag)
	if err != nil && c.replace {
		return "1", nil
	}
	return newETag, err
}

// TestStorageNeedsConditionalWrites: some services that claim to be like S3 ignore preconditions.
func TestStorageNeedsConditionalWrites(t *testing.T) {
	store, err := file.Open(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, checkWrites(t.Context(), store))
	for want, wrong := range map[string]storage.Store{
		"If-None-Match": careless{Store: store, create: true},
		"If-Match":      careless{Store: store, replace: true},
	} {
		err := checkWrites(t.Context(), wrong)
		require.ErrorContains(t, err, "no conditional writes")
		assert.ErrorContains(t, err, want)
	}
	left, err := store.List(t.Context(), "")
	require.NoError(t, err)
	assert.Empty(t, left)
}
