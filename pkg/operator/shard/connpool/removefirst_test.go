// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/operator/shard"
)

// Each list of deletion candidates replaces the previous one, and so does an empty
// list.
func TestUpsertGroupReplacesRemoveFirst(t *testing.T) {
	server, ours, _ := startServer(t)
	for n, removeFirst := range [][]string{nil, {"knd2", "knd1"}, {"knd3"}, nil} {
		reply, err := ours.UpsertGroup(t.Context(), "a", "workers", shard.GroupConfig{Size: 0, RemoveFirst: removeFirst})
		require.NoError(t, err)
		if !reply.ListsInstances || !slices.Equal(reply.RemoveFirst, removeFirst) {
			t.Errorf("after %q the server replies %+v", removeFirst, reply)
		}
		if got := server.Upserts("workers")[n].GetRemoveFirst(); !slices.Equal(got, removeFirst) {
			t.Errorf("the server received %q, want %q", got, removeFirst)
		}
	}
}
