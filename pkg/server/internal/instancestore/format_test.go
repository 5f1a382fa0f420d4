// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/internal/instancestore"
)

// rewrite changes a stored record as a server of a later version does.
func rewrite(t *testing.T, s *shard, key string, change func(record map[string]any)) {
	t.Helper()
	object, err := s.storage.Get(t.Context(), key)
	require.NoError(t, err)
	var record map[string]any
	require.NoError(t, json.Unmarshal(object.Data, &record))
	change(record)
	data, err := json.Marshal(record)
	require.NoError(t, err)
	_, err = s.storage.Replace(t.Context(), key, data, object.ETag)
	require.NoError(t, err)
}

// TestFieldsOfALaterVersionAreKept by changes of the record, and through the cache.
func TestFieldsOfALaterVersionAreKept(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := newRecord(t)
	require.NoError(t, s.Add(t.Context(), record))
	key := keyOf(t, record)
	rewrite(t, s, key, func(record map[string]any) { record["placement"] = map[string]any{"rack": "7"} })
	s.restart()
	require.NoError(t, s.SetProviderID(t.Context(), record.ID, "vm-1"))
	s.restart()
	require.NoError(t, s.RequestDeletion(t.Context(), record.ID))
	rewrite(t, s, key, func(record map[string]any) {
		require.Equal(t, "vm-1", record["provider_id"])
		require.Contains(t, record, "deletion_requested_at")
		require.Equal(t, map[string]any{"rack": "7"}, record["placement"])
		require.NotContains(t, record, "format_version", "servers from before the field would drop it")
	})
}

// TestFormatOfALaterVersion is refused, whatever the cache has: a record that counts as
// damaged would be replaced.
func TestFormatOfALaterVersion(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := newRecord(t)
	require.NoError(t, s.Add(t.Context(), record))
	key := keyOf(t, record)
	rewrite(t, s, key, func(record map[string]any) { record["format_version"] = 2 })
	before, err := s.storage.Get(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, s.cache.Close())
	err = s.tryOpen(instancestore.Options{})
	require.ErrorContains(t, err, key)
	require.ErrorContains(t, err, "has format version 2, and this server reads versions up to 1")
	after, err := s.storage.Get(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, before, after)
}
