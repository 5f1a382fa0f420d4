// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"nstance.dev/operator/pkg/testing/tier"
)

// lendWalk is a pool whose shards have changing stock, in steps of one second.
type lendWalk struct {
	t       *testing.T
	random  *rand.Rand
	even    bool
	after   int
	now     int
	moves   []int // the times of all moves
	sizes   []int32
	created []int32
	stock   []int32 // how many instances each shard can have
	usable  []bool
	since   []int // since when each shard reports a shortfall, -1 if it does not
	lent    []int32
	of      int32 // the replicas that lent was stored for
}

// step lets the shards create what they can, and the operator divide the replicas. With
// interrupted only the shards that shrink are written.
func (w *lendWalk) step(replicas int32, interrupted bool) {
	w.now++
	list := make([]stocked, len(w.sizes))
	for i := range w.sizes {
		// A server removes what it has too many of, and creates what it has stock for.
		w.created[i] = min(w.created[i], w.sizes[i])
		w.created[i] = max(w.created[i], min(w.sizes[i], w.stock[i]))
		missing := w.sizes[i] - w.created[i]
		switch {
		case missing == 0 || !w.usable[i]:
			w.since[i] = -1
		case w.since[i] < 0:
			w.since[i] = w.now
		}
		stock := Stock{Usable: w.usable[i], Lent: w.lent[i]}
		if w.usable[i] {
			stock.Missing, stock.Due = missing, missing > 0 && w.now-w.since[i] >= w.after
		}
		list[i] = stocked{w.sizes[i], w.created[i], stock}
	}
	options := lendOptions{even: w.even, interrupted: w.of == replicas, mayMove: len(w.moves) == 0 || w.now-w.moves[len(w.moves)-1] >= w.after}
	result := lend(stockedShards(list), replicas, options)
	w.check(result, replicas, options)
	scaledDown := Total(w.sizes) > replicas
	if result.moved {
		w.moves = append(w.moves, w.now)
	}
	for i := range w.sizes {
		if interrupted && !scaledDown && result.sizes[i] > w.sizes[i] {
			continue
		}
		w.sizes[i], w.lent[i] = result.sizes[i], result.lent[i]
	}
	w.of = replicas
	if got := Total(w.sizes); got > replicas {
		w.t.Fatalf("the sizes %v are %d, more than %d", w.sizes, got, replicas)
	}
}

func (w *lendWalk) check(result loans, replicas int32, options lendOptions) {
	w.t.Helper()
	if got := Total(result.sizes); got != replicas {
		w.t.Fatalf("second %d: the sizes %v add up to %d, want %d", w.now, result.sizes, got, replicas)
	}
	before := Total(w.sizes)
	moved := false
	for i, size := range result.sizes {
		if before <= replicas && size < w.created[i] {
			w.t.Fatalf("second %d: shard %d has created %d instances, and its size becomes %d", w.now, i, w.created[i], size)
		}
		if before <= replicas && !w.usable[i] && size < w.sizes[i] {
			w.t.Fatalf("second %d: shard %d is not connected, and its size becomes %d", w.now, i, size)
		}
		moved = moved || before == replicas && size != w.sizes[i]
	}
	if moved && !options.mayMove {
		w.t.Fatalf("second %d: sizes %v became %v, the last move was at %v", w.now, w.sizes, result.sizes, w.moves)
	}
	if before >= replicas || options.interrupted {
		return
	}
	// Growth fills the lenders first.
	shares := even(replicas, len(w.sizes))
	for i := range w.sizes {
		lacks := w.lent[i] > 0 && w.usable[i] && w.since[i] < 0 && result.sizes[i] < shares[i]
		if !lacks {
			continue
		}
		for j := range w.sizes {
			if w.lent[j] <= 0 && result.sizes[j] > w.sizes[j] {
				w.t.Fatalf("second %d: shard %d grows from %v to %v before lender %d has its share of %v, lent are %v", w.now, j, w.sizes, result.sizes, i, shares, w.lent)
			}
		}
	}
}

func newLendWalk(t *testing.T, seed uint64) *lendWalk {
	random := rand.New(rand.NewPCG(seed, 0))
	shards := 2 + random.IntN(4)
	w := &lendWalk{t: t, random: random, even: seed%2 == 0, after: 1 + random.IntN(20), of: -1}
	w.sizes, w.created, w.lent, w.stock = make([]int32, shards), make([]int32, shards), make([]int32, shards), make([]int32, shards)
	for range shards {
		w.usable, w.since = append(w.usable, true), append(w.since, -1)
	}
	return w
}

// TestLendWalk: stock, connections and replicas change at random, and the operator stops in
// the middle of its writes.
func TestLendWalk(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(100, 500)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			w := newLendWalk(t, seed)
			replicas := int32(w.random.IntN(20))
			for range 300 {
				i := w.random.IntN(len(w.sizes))
				switch w.random.IntN(12) {
				case 0:
					replicas = int32(w.random.IntN(30))
				case 1:
					w.stock[i] = int32(w.random.IntN(20))
				case 2:
					w.usable[i] = !w.usable[i]
				case 3:
					// The provider terminates some.
					w.created[i] -= min(w.created[i], int32(w.random.IntN(3)))
				}
				w.step(replicas, w.random.IntN(4) == 0)
			}
			// With stock everywhere, growth makes the sizes equal again.
			for i := range w.sizes {
				w.usable[i], w.stock[i] = true, 1000
			}
			w.step(replicas, false)
			// The share of each shard exceeds its present size in the end.
			for range (int(slices.Max(w.sizes)) + 1) * len(w.sizes) {
				replicas++
				w.step(replicas, false)
			}
			if shares := even(replicas, len(w.sizes)); !slices.Equal(w.sizes, shares) {
				t.Errorf("the sizes are %v, the shares %v", w.sizes, shares)
			}
			if !slices.Equal(w.lent, make([]int32, len(w.lent))) {
				t.Errorf("lent are %v", w.lent)
			}
		})
	}
}

// TestAlternatingStock: two shards have stock in turn. No more than one move happens in
// each period.
func TestAlternatingStock(t *testing.T) {
	for _, even := range []bool{true, false} {
		w := newLendWalk(t, 1)
		w.even, w.after = even, 10
		w.sizes, w.created, w.lent, w.stock = make([]int32, 3), make([]int32, 3), make([]int32, 3), []int32{3, 3, 3}
		w.usable, w.since = []bool{true, true, true}, []int{-1, -1, -1}
		w.step(9, false)
		for second := range 400 {
			if turn := int32(second / 25 % 2); second%25 == 0 {
				w.stock[0], w.stock[1] = turn*9, (1-turn)*9
				w.created[turn] = 0
			}
			w.step(9, false)
		}
		if len(w.moves) == 0 {
			t.Error("nothing has moved")
		}
		for i := 1; i < len(w.moves); i++ {
			if w.moves[i]-w.moves[i-1] < w.after {
				t.Errorf("even %t: moves at %v", even, w.moves)
			}
		}
	}
}
