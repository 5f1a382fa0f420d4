// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"testing"

	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/e2e/nstance"
)

// witness tells whether a group has lost instances since a certain moment, by
// every call that the shards' servers have received.
type witness struct {
	group string
	// sizes and calls are what each shard had and had been asked at that moment.
	sizes map[string]int32
	calls map[string]int
}

// newWitness begins now. Every shard has to be up.
func newWitness(t testing.TB, group string) *witness {
	t.Helper()
	w := &witness{group: group, sizes: map[string]int32{}, calls: map[string]int{}}
	for _, shard := range shardIDs {
		w.calls[shard] = len(callsOf(t, shard))
		groups, err := shardClient(t, shard).ListGroups(t.Context(), &emptypb.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range groups.GetGroups() {
			if g.GetKey() == group {
				w.sizes[shard] = g.GetSize()
			}
		}
	}
	return w
}

// sawNoLoss fails the test for every call since then that asked for less than a
// shard had, or for the end of any group. It returns how many calls there were
// for the group.
func (w *witness) sawNoLoss(t testing.TB) int {
	t.Helper()
	seen := 0
	for _, shard := range shardIDs {
		size := w.sizes[shard]
		for _, call := range callsOf(t, shard)[w.calls[shard]:] {
			switch {
			case call.Delete:
				t.Errorf("shard %s received DeleteGroup of %s", shard, call.Group)
			case call.Group != w.group:
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

func callsOf(t testing.TB, shard string) []nstance.Call {
	t.Helper()
	calls, err := env.n.Calls(shard)
	if err != nil {
		t.Fatal(err)
	}
	return calls
}
