// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/operator/shard"
)

// The requests of a former leader that arrive after those of the next one neither
// shrink a group nor create it again.
func TestLateRequestsOfAFormerLeader(t *testing.T) {
	server, former, _ := startServer(t)
	next := startPool(t, server, "default")
	config := func(generation int64, size int32) shard.GroupConfig {
		return shard.GroupConfig{
			GroupSettings: shard.GroupSettings{Template: "worker"}, Size: size,
			Revision: &shard.Revision{UID: "u", Generation: generation},
		}
	}
	wantStale := func(err error) {
		t.Helper()
		if !shard.IsStale(err) || shard.IsRejected(err) || shard.IsUnreachable(err) {
			t.Errorf("got error %v, want one that says that the request is stale", err)
		}
	}
	_, err := former.UpsertGroup(t.Context(), "a", "pool", config(1, 1))
	require.NoError(t, err)
	grown, err := next.UpsertGroup(t.Context(), "a", "pool", config(2, 3))
	require.NoError(t, err)
	assert.Equal(t, &shard.Revision{UID: "u", Generation: 2}, grown.Revision)

	_, err = former.UpsertGroup(t.Context(), "a", "pool", config(1, 1))
	wantStale(err)
	assert.Equal(t, `group default/pool: the request has generation 1 of object u, but the group has the newer generation 2`, shard.Message(err))
	wantStale(former.DeleteGroup(t.Context(), "a", "pool", &shard.Revision{UID: "u", Generation: 1}))
	same, err := next.UpsertGroup(t.Context(), "a", "pool", config(2, 3))
	require.NoError(t, err)
	assert.Equal(t, grown.ETag, same.ETag, "the etag after refused requests")

	require.NoError(t, next.DeleteGroup(t.Context(), "a", "pool", &shard.Revision{UID: "u", Generation: 3}))
	_, err = former.UpsertGroup(t.Context(), "a", "pool", config(2, 3))
	wantStale(err)

	// The pool is created again, and the deletion of the first one arrives once more.
	created := config(1, 2)
	created.Revision.UID = "v"
	_, err = next.UpsertGroup(t.Context(), "a", "pool", created)
	require.NoError(t, err)
	require.NoError(t, former.DeleteGroup(t.Context(), "a", "pool", &shard.Revision{UID: "u", Generation: 3}))
	reply, err := next.UpsertGroup(t.Context(), "a", "pool", created)
	require.NoError(t, err)
	assert.Equal(t, int32(2), reply.Size)
	assert.Equal(t, created.Revision, reply.Revision)
}

// An administrator replaces a newer revision by an older one.
func TestReplaces(t *testing.T) {
	_, operator, _ := startServer(t)
	config := shard.GroupConfig{Size: 3, Revision: &shard.Revision{UID: "u", Generation: 9}}
	_, err := operator.UpsertGroup(t.Context(), "a", "workers", config)
	require.NoError(t, err)
	config = shard.GroupConfig{Size: 2, Revision: &shard.Revision{UID: "u", Generation: 5}, Replaces: &shard.Revision{UID: "u", Generation: 8}}
	_, err = operator.UpsertGroup(t.Context(), "a", "workers", config)
	assert.True(t, shard.IsStale(err), "the revision that was replaced before: %v", err)
	config.Replaces.Generation = 9
	reply, err := operator.UpsertGroup(t.Context(), "a", "workers", config)
	require.NoError(t, err)
	assert.Equal(t, int32(2), reply.Size)
	assert.Equal(t, config.Revision, reply.Revision)
}
