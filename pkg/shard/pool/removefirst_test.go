// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pool_test

import (
	"slices"
	"testing"

	"nstance.dev/operator/pkg/shard"
)

// Who goes first always replaces what was said before, also by nobody.
func TestUpsertGroupSaysWhoGoesFirst(t *testing.T) {
	server, ours, _ := startServer(t)
	for n, first := range [][]string{nil, {"knd2", "knd1"}, {"knd3"}, nil} {
		answer, err := ours.UpsertGroup(t.Context(), "a", "workers", shard.GroupConfig{Size: 0, RemoveFirst: first})
		if err != nil {
			t.Fatal(err)
		}
		if !answer.ListsInstances || !slices.Equal(answer.RemoveFirst, first) {
			t.Errorf("after %q the server answers %+v", first, answer)
		}
		if got := server.Upserts("workers")[n].GetRemoveFirst(); !slices.Equal(got, first) {
			t.Errorf("the server got %q, want %q", got, first)
		}
	}
}
