// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

// stocked is a shard of the tests: its size, how many instances it has created, and what
// is known of its stock. The others are pending, without a provider id.
type stocked struct {
	size, created int32
	stock         Stock
}

// stockedShards returns shards a, b, c, and so on.
func stockedShards(list []stocked) (shards []Shard) {
	for i, shard := range list {
		id := string(rune('a' + i))
		group := &Group{Size: shard.size, ListsInstances: true}
		for n := range max(shard.size, shard.created) {
			group.Instances = append(group.Instances, Instance{
				ID: fmt.Sprintf("%s-%d", id, n), Pending: n >= shard.created, Uncreated: n >= shard.created,
			})
		}
		shards = append(shards, Shard{ID: id, Size: shard.size, HasShardGroup: true, Synced: true, Reported: group, Stock: shard.stock})
	}
	return shards
}

func TestLend(t *testing.T) {
	// short reports a shortfall that is due.
	short := func(missing, lent int32) Stock {
		return Stock{Usable: true, Missing: missing, Due: true, Lent: lent}
	}
	fine := func(lent int32) Stock { return Stock{Usable: true, Lent: lent} }
	even := lendOptions{even: true, mayMove: true}
	for name, test := range map[string]struct {
		shards   []stocked
		replicas int32
		options  lendOptions
		sizes    []int32
		lent     []int32
		selected string
		moved    bool
	}{
		"a shard without stock lends everything": {
			shards:   []stocked{{3, 0, short(3, 0)}, {3, 3, fine(0)}, {3, 3, fine(0)}},
			replicas: 9, options: even, sizes: []int32{0, 5, 4}, lent: []int32{3, -2, -1}, selected: "[[a-0 a-1 a-2] [] []]", moved: true,
		},
		"and only what it lacks": {
			shards:   []stocked{{3, 1, short(2, 0)}, {3, 3, fine(0)}, {3, 3, fine(0)}},
			replicas: 9, options: even, sizes: []int32{1, 4, 4}, lent: []int32{2, -1, -1}, selected: "[[a-1 a-2] [] []]", moved: true,
		},
		"in a pool with Machines too": {
			shards:   []stocked{{2, 1, short(1, 0)}, {5, 5, fine(0)}, {3, 3, fine(0)}},
			replicas: 10, options: lendOptions{mayMove: true}, sizes: []int32{1, 5, 4}, lent: []int32{1, 0, -1}, selected: "[[a-1] [] []]", moved: true,
		},
		"not soon after a move": {
			shards:   []stocked{{3, 0, short(3, 0)}, {3, 3, fine(0)}},
			replicas: 6, options: lendOptions{even: true}, sizes: []int32{3, 3}, lent: []int32{0, 0}, selected: "[[] []]",
		},
		"not before the time": {
			shards:   []stocked{{3, 0, Stock{Usable: true, Missing: 3}}, {3, 3, fine(0)}},
			replicas: 6, options: even, sizes: []int32{3, 3}, lent: []int32{0, 0}, selected: "[[] []]",
		},
		"not to a shard that is not connected, or has a shortfall itself": {
			shards:   []stocked{{3, 0, short(3, 0)}, {3, 3, Stock{}}, {3, 2, Stock{Usable: true, Missing: 1}}},
			replicas: 9, options: even, sizes: []int32{3, 3, 3}, lent: []int32{0, 0, 0}, selected: "[[] [] []]",
		},
		"an interrupted move is completed": {
			shards:   []stocked{{0, 0, fine(3)}, {3, 3, fine(0)}, {3, 3, fine(0)}},
			replicas: 9, options: lendOptions{even: true, interrupted: true}, sizes: []int32{0, 5, 4}, lent: []int32{3, -2, -1}, selected: "[[] [] []]", moved: true,
		},
		"growth fills the lender first": {
			shards:   []stocked{{0, 0, fine(3)}, {5, 5, fine(-2)}, {4, 4, fine(-1)}},
			replicas: 12, options: even, sizes: []int32{3, 5, 4}, lent: []int32{1, -1, 0}, selected: "[[] [] []]",
		},
		"in a pool with Machines growth fills the lender first too": {
			shards:   []stocked{{0, 0, fine(3)}, {5, 5, fine(-2)}, {4, 4, fine(-1)}},
			replicas: 12, options: lendOptions{}, sizes: []int32{3, 5, 4}, lent: []int32{1, -1, 0}, selected: "[[] [] []]",
		},
		"up to its share": {
			shards:   []stocked{{0, 0, fine(3)}, {5, 5, fine(-2)}, {4, 4, fine(-1)}},
			replicas: 15, options: even, sizes: []int32{5, 5, 5}, lent: []int32{0, 0, 0}, selected: "[[] [] []]",
		},
		"growth passes over a lender that is still without stock": {
			shards:   []stocked{{1, 0, Stock{Usable: true, Missing: 1, Lent: 2}}, {4, 4, fine(-1)}, {4, 4, fine(-1)}},
			replicas: 12, options: even, sizes: []int32{1, 6, 5}, lent: []int32{3, -2, -1}, selected: "[[] [] []]",
		},
		"a scale-down removes from the largest": {
			shards:   []stocked{{0, 0, fine(3)}, {5, 5, fine(-2)}, {4, 4, fine(-1)}},
			replicas: 6, options: even, sizes: []int32{0, 3, 3}, lent: []int32{2, -1, -1}, selected: "[[] [] []]",
		},
		"what runs does not return": {
			shards:   []stocked{{0, 0, fine(3)}, {5, 5, fine(-2)}, {4, 4, fine(-1)}},
			replicas: 9, options: even, sizes: []int32{0, 5, 4}, lent: []int32{3, -2, -1}, selected: "[[] [] []]",
		},
		"what is being replaced returns, one at a time": {
			shards:   []stocked{{0, 0, fine(3)}, {5, 3, fine(-2)}, {4, 4, fine(-1)}},
			replicas: 9, options: even, sizes: []int32{1, 4, 4}, lent: []int32{2, -1, -1}, selected: "[[] [b-4] []]", moved: true,
		},
		"and not while the lender has a shortfall": {
			shards:   []stocked{{1, 0, Stock{Usable: true, Missing: 1, Lent: 2}}, {4, 3, fine(-1)}, {4, 4, fine(-1)}},
			replicas: 9, options: even, sizes: []int32{1, 4, 4}, lent: []int32{2, -1, -1}, selected: "[[] [] []]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := lend(stockedShards(test.shards), test.replicas, test.options)
			assert.Equal(t, test.sizes, got.sizes, "sizes")
			assert.Equal(t, test.lent, got.lent, "lent")
			assert.Equal(t, test.selected, fmt.Sprint(got.selected), "selected")
			assert.Equal(t, test.moved, got.moved, "moved")
		})
	}
}

// A server that works towards another size may need its pending instances.
func TestOutdatedReportsLendNothing(t *testing.T) {
	shards := stockedShards([]stocked{{3, 0, Stock{Usable: true, Missing: 3, Due: true}}, {3, 3, Stock{Usable: true}}})
	shards[0].Reported.Size = 4
	assert.Equal(t, []int32{3, 3}, lend(shards, 6, lendOptions{even: true, mayMove: true}).sizes)
}

// A lender has stock again while the server of another shard has no group: it is not known
// what that shard could return.
func TestUnknownBorrowersReturnNothing(t *testing.T) {
	shards := stockedShards([]stocked{{2, 2, Stock{Usable: true, Lent: 1}}, {4, 4, Stock{Usable: true, Lent: -1}}})
	shards[1].Reported = nil
	assert.Equal(t, []int32{2, 4}, lend(shards, 6, lendOptions{mayMove: true}).sizes)
}

// A server may report more than its list of instances shows, such as one that has failed and
// is being replaced.
func TestWhatExistsIsNotLent(t *testing.T) {
	shards := stockedShards([]stocked{{3, 2, Stock{Usable: true, Missing: 3, Due: true}}, {3, 3, Stock{Usable: true}}})
	got := lend(shards, 6, lendOptions{even: true, mayMove: true})
	assert.Equal(t, []int32{2, 4}, got.sizes)
	assert.Equal(t, []string{"a-2"}, got.selected[0])

	shards = stockedShards([]stocked{{3, 3, Stock{Usable: true, Missing: 1, Due: true}}, {3, 3, Stock{Usable: true}}})
	assert.Equal(t, []int32{3, 3}, lend(shards, 6, lendOptions{even: true, mayMove: true}).sizes)
}
