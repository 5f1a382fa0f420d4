// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"testing"

	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/require"
)

// lossChecker checks whether operators have scaled a group down since it was created,
// by every call that the shards' servers have received.
type lossChecker struct {
	group string
	// sizes and calls are the size of the group on each shard, and the number of calls
	// that the shard had received, at the beginning.
	sizes map[string]int32
	calls map[string]int
}

// newLossChecker returns a lossChecker that begins now. Every shard must be up.
func newLossChecker(t testing.TB, group string) *lossChecker {
	t.Helper()
	l := &lossChecker{group: group, sizes: map[string]int32{}, calls: map[string]int{}}
	for _, shard := range shardIDs {
		l.calls[shard] = len(callsOf(t, shard))
		groups, err := shardClient(t, shard).ListGroups(t.Context(), &emptypb.Empty{})
		require.NoError(t, err)
		for _, g := range groups.GetGroups() {
			if g.GetKey() == group {
				l.sizes[shard] = g.GetSize()
			}
		}
	}
	return l
}

// expectNone fails the test for every call since then that requested a smaller size than
// before, or the deletion of any group. It returns how many calls there were for the
// group.
func (l *lossChecker) expectNone(t testing.TB) int {
	t.Helper()
	seen := 0
	for _, shard := range shardIDs {
		size := l.sizes[shard]
		for _, call := range callsOf(t, shard)[l.calls[shard]:] {
			switch {
			case call.Delete:
				t.Errorf("shard %s received DeleteGroup of %s", shard, call.Group)
			case call.Group != l.group:
			case call.Size < size:
				t.Errorf("shard %s received UpsertGroup of %s with size %d, it had %d", shard, call.Group, call.Size, size)
				fallthrough
			default:
				size = call.Size
				seen++
			}
		}
	}
	return seen
}

func callsOf(t testing.TB, shard string) []installation.Call {
	t.Helper()
	calls, err := env.Installation.Calls(shard)
	require.NoError(t, err)
	return calls
}
