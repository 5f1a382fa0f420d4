// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import "slices"

// loans is the result of lend.
type loans struct {
	sizes []int32
	// selected are by shard the ids of instances to remove before others, as of scale.
	selected [][]string
	// lent has a new Stock.Lent for each shard.
	lent []int32
	// moved reports whether an instance has moved from one shard to another.
	moved bool
}

// lendOptions select what lend may do.
type lendOptions struct {
	// candidates are the deletion candidates for a scale-down.
	candidates []Candidate
	// even is set for a pool without Machines. Its loans are the whole difference to equal
	// shares, because it returns to these when it has no loans.
	even bool
	// mayMove is set when the last move is long enough ago.
	mayMove bool
	// interrupted is set when Stock.Lent was stored for the same replicas. If the sizes are
	// smaller, only the lenders of a move were written.
	interrupted bool
}

// lend changes the sizes of a pool until they add up to replicas, if shards lack capacity
// or have lent instances. An instance that runs is terminated only by a scale-down:
//   - A scale-up fills the lenders without a shortfall first, each up to its share.
//   - A scale-down removes instances as scale does.
//   - If the sizes add up, a shard whose shortfall is due lends what it cannot create to
//     the shards without a shortfall, one by one to the smallest. Otherwise one instance
//     that a borrower has not created yet returns to a lender without a shortfall.
func lend(shards []Shard, replicas int32, options lendOptions) loans {
	result := loans{sizes: Sizes(shards), selected: make([][]string, len(shards))}
	shares := spread(shards, replicas)
	to, missing := borrowers(shards), max(replicas, 0)-Total(result.sizes)
	switch {
	case missing < 0:
		result.sizes, result.selected = scale(shards, replicas, options.candidates)
	case missing > 0 && options.interrupted && slices.Contains(to, true):
		growSome(result.sizes, missing, to)
		result.moved = true
	case missing > 0:
		result.growLenders(shards, shares, missing)
	case options.mayMove:
		result.moved = result.lendDue(shards, to) || result.giveBack(shards, shares)
	}
	lent := make([]int32, len(shards))
	for i := range shards {
		lent[i] = shards[i].Stock.Lent
		if result.moved {
			lent[i] += shards[i].Size - result.sizes[i]
		}
	}
	result.lent = settle(lent, result.sizes, shares, options.even)
	return result
}

// hasLoans reports whether a shard has lent or borrowed instances.
func hasLoans(shards []Shard) bool {
	return slices.ContainsFunc(shards, func(shard Shard) bool { return shard.Stock.Lent != 0 })
}

// hasDueShortfall reports whether a shard has instances to lend.
func hasDueShortfall(shards []Shard) bool {
	return slices.ContainsFunc(shards, func(shard Shard) bool { return shard.Stock.Due })
}

// isInterrupted reports whether a shard has stored a loan for these replicas.
func isInterrupted(shards []Shard, replicas int32) bool {
	return slices.ContainsFunc(shards, func(shard Shard) bool { return shard.Stock.Lent > 0 && shard.Stock.LentOf == replicas })
}

// fillable reports whether the shard is known to have capacity for more instances.
func (s *Shard) fillable() bool { return !s.Fixed && s.Stock.Usable && s.Stock.Missing == 0 }

// lendDue moves the instances of due shortfalls to borrowers, and reports whether it moved
// any. A shard whose server has another size may need them by now.
func (l *loans) lendDue(shards []Shard, to []bool) (moved bool) {
	if !slices.Contains(to, true) {
		return false
	}
	var total int32
	for i := range shards {
		stock := shards[i].Stock
		if shards[i].Fixed || !stock.Usable || !stock.Due || !shards[i].current() {
			continue
		}
		n := min(stock.Missing, l.sizes[i]-shards[i].created(), l.sizes[i]-shards[i].Min)
		if n <= 0 {
			continue
		}
		l.sizes[i] -= n
		uncreated := shards[i].uncreated()
		l.selected[i] = uncreated[max(0, len(uncreated)-int(n)):]
		total += n
	}
	growSome(l.sizes, total, to)
	return total > 0
}

// giveBack moves one instance that a borrower has not created to a lender, and reports
// whether it found one.
func (l *loans) giveBack(shards []Shard, shares []int32) (moved bool) {
	to := slices.IndexFunc(shards, func(s Shard) bool { return s.Stock.Lent > 0 && s.fillable() })
	if to < 0 || l.sizes[to] >= shares[to] || !shards[to].current() {
		return false
	}
	for i := range shards {
		stock := shards[i].Stock
		if shards[i].Fixed || stock.Lent >= 0 || !stock.Usable || !shards[i].current() || l.sizes[i] <= max(shares[i], shards[i].Min) {
			continue
		}
		uncreated := shards[i].uncreated()
		if len(uncreated) == 0 {
			continue
		}
		l.sizes[i]--
		l.sizes[to]++
		l.selected[i] = uncreated[len(uncreated)-1:]
		return true
	}
	return false
}

// borrowers returns which shards can run instances of other shards. A shard that has lent
// instances itself is a borrower only if there is no other.
func borrowers(shards []Shard) []bool {
	fillable, withoutLenders := make([]bool, len(shards)), make([]bool, len(shards))
	for i := range shards {
		fillable[i] = shards[i].fillable()
		withoutLenders[i] = fillable[i] && shards[i].Stock.Lent <= 0
	}
	if slices.Contains(withoutLenders, true) {
		return withoutLenders
	}
	return fillable
}

// growLenders adds n instances to the sizes: first to the lenders without a shortfall, until they
// have their shares. A lender with a shortfall has no capacity: the rest goes to other shards, or if
// there are none, to all that are not fixed.
func (l *loans) growLenders(shards []Shard, shares []int32, n int32) {
	mayHaveCapacity := make([]bool, len(shards))
	for i := range shards {
		lender := shards[i].Stock.Lent > 0
		if lender && shards[i].fillable() {
			step := min(n, max(0, shares[i]-l.sizes[i]))
			l.sizes[i] += step
			n -= step
		}
		mayHaveCapacity[i] = shards[i].fillable() || !shards[i].Fixed && !lender
	}
	if slices.Contains(mayHaveCapacity, true) {
		growSome(l.sizes, n, mayHaveCapacity)
	} else {
		growVariable(shards, l.sizes, n)
	}
}

// settle returns the loans at these sizes: at most as many instances as a lender lacks to
// its share, and as a borrower exceeds its share by.
func settle(lent, sizes, shares []int32, even bool) []int32 {
	settled, lends := make([]int32, len(lent)), false
	for i := range lent {
		difference := shares[i] - sizes[i]
		switch {
		case even:
			settled[i] = difference
		case lent[i] > 0:
			settled[i] = min(lent[i], max(difference, 0))
		default:
			settled[i] = max(lent[i], min(difference, 0))
		}
		lends = lends || settled[i] > 0
	}
	if !lends {
		return make([]int32, len(lent))
	}
	return settled
}
