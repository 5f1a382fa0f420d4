// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import "slices"

// Stock is what a shard of a pool can create, and what it has lent to other shards.
type Stock struct {
	// Usable reports whether the shard is connected and its groups are known.
	Usable bool
	// Missing is how many instances the shard reports that it has no capacity for.
	Missing int32
	// Due reports whether it has reported that for long enough to lend them.
	Due bool
	// Lent is how many instances the shard has lent to others, less than 0 if it has
	// borrowed them.
	Lent int32
}

// Loans are the sizes of a pool some of whose shards run instances for others.
type Loans struct {
	Sizes []int32
	// Selected are by shard the ids of instances to remove before others, as of Scale.
	Selected [][]string
	// Lent are the new values of Stock.Lent.
	Lent []int32
	// Moved reports whether an instance has moved from one shard to another.
	Moved bool
}

// LendOptions select what Lend may do.
type LendOptions struct {
	// Candidates are the deletion candidates for a scale-down.
	Candidates []Candidate
	// Even is set for a pool without Machines. Its Lent are the whole difference to equal
	// shares, because it returns to these when there is none.
	Even bool
	// MayMove is set when the last move is long enough ago.
	MayMove bool
	// Interrupted is set when Lent was stored for the same replicas. If the sizes are
	// smaller, only the lenders of a move were written.
	Interrupted bool
}

// Lend changes the sizes of a pool until they add up to replicas, if shards lack capacity
// or have lent instances. An instance that runs is terminated only by a scale-down:
//   - A scale-up fills the lenders without a shortfall first, each up to its share.
//   - A scale-down is that of Scale.
//   - If the sizes add up, a shard whose shortfall is due lends what it cannot create to
//     the shards without one, one by one to the smallest. Otherwise one instance that a
//     borrower has not created yet returns to a lender without a shortfall.
func Lend(shards []Shard, stocks []Stock, replicas int32, options LendOptions) Loans {
	loans := Loans{Sizes: Sizes(shards), Selected: make([][]string, len(shards))}
	shares := Spread(shards, replicas)
	lent := make([]int32, len(shards))
	for i := range stocks {
		lent[i] = stocks[i].Lent
	}
	before := slices.Clone(loans.Sizes)
	switch missing := max(replicas, 0) - Total(loans.Sizes); {
	case missing < 0:
		loans.Sizes, loans.Selected = Scale(shards, replicas, options.Candidates)
	case missing > 0 && options.Interrupted && growSome(loans.Sizes, missing, borrowers(shards, stocks)):
		loans.Moved = true
	case missing > 0:
		growLenders(&loans, shards, stocks, shares, missing)
	case options.MayMove:
		loans.Moved = loans.lend(shards, stocks) || loans.giveBack(shards, stocks, shares)
	}
	if loans.Moved {
		for i := range lent {
			lent[i] += before[i] - loans.Sizes[i]
		}
	}
	loans.Lent = settle(lent, loans.Sizes, shares, options.Even)
	return loans
}

// lend moves the instances of due shortfalls, and reports whether there were any. A shard
// whose server has another size may need them by now.
func (l *Loans) lend(shards []Shard, stocks []Stock) (moved bool) {
	to := borrowers(shards, stocks)
	if !slices.Contains(to, true) {
		return false
	}
	var total int32
	for i := range shards {
		if shards[i].Fixed || !stocks[i].Usable || !stocks[i].Due || !shards[i].current() {
			continue
		}
		n := min(stocks[i].Missing, l.Sizes[i]-shards[i].created())
		if n <= 0 {
			continue
		}
		l.Sizes[i] -= n
		uncreated := shards[i].uncreated()
		l.Selected[i] = uncreated[max(0, len(uncreated)-int(n)):]
		total += n
	}
	growSome(l.Sizes, total, to)
	return total > 0
}

// giveBack moves one instance that a borrower has not created to a lender, and reports
// whether there was one.
func (l *Loans) giveBack(shards []Shard, stocks []Stock, shares []int32) (moved bool) {
	to := slices.IndexFunc(stocks, func(s Stock) bool { return s.Lent > 0 && s.Usable && s.Missing == 0 })
	if to < 0 || shards[to].Fixed || l.Sizes[to] >= shares[to] || !shards[to].current() {
		return false
	}
	for i := range shards {
		uncreated := shards[i].uncreated()
		if shards[i].Fixed || stocks[i].Lent >= 0 || !stocks[i].Usable || !shards[i].current() || len(uncreated) == 0 || l.Sizes[i] <= shares[i] {
			continue
		}
		l.Sizes[i]--
		l.Sizes[to]++
		l.Selected[i] = uncreated[len(uncreated)-1:]
		return true
	}
	return false
}

// borrowers returns which shards can run instances of others: those that have not lent
// any themselves, if there are such.
func borrowers(shards []Shard, stocks []Stock) []bool {
	all, others := make([]bool, len(shards)), make([]bool, len(shards))
	for i := range shards {
		all[i] = !shards[i].Fixed && stocks[i].Usable && stocks[i].Missing == 0
		others[i] = all[i] && stocks[i].Lent <= 0
	}
	if slices.Contains(others, true) {
		return others
	}
	return all
}

// growLenders fills the lenders without a shortfall, and then grows the other shards.
func growLenders(loans *Loans, shards []Shard, stocks []Stock, shares []int32, n int32) {
	others := make([]bool, len(shards))
	for i := range shards {
		lender := stocks[i].Lent > 0
		if lender && !shards[i].Fixed && stocks[i].Usable && stocks[i].Missing == 0 {
			step := min(n, max(0, shares[i]-loans.Sizes[i]))
			loans.Sizes[i] += step
			n -= step
		}
		others[i] = !shards[i].Fixed && (!lender || stocks[i].Usable && stocks[i].Missing == 0)
	}
	if !growSome(loans.Sizes, n, others) {
		growVariable(shards, loans.Sizes, n)
	}
}

// growSome adds n to some of the sizes (see grow), and reports whether there are any.
func growSome(sizes []int32, n int32, some []bool) bool {
	var chosen []int32
	for i := range sizes {
		if some[i] {
			chosen = append(chosen, sizes[i])
		}
	}
	grow(chosen, n)
	result := len(chosen) > 0
	for i := range sizes {
		if some[i] {
			sizes[i], chosen = chosen[0], chosen[1:]
		}
	}
	return result
}

// settle returns what is lent at these sizes: no more than what a lender lacks of its
// share, and what a borrower exceeds it by.
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

// current reports whether the server works towards the size of the shard, and lists its
// instances.
func (s *Shard) current() bool { return s.listsInstances() && s.Reported.Size == s.Size }

// created returns how many instances the shard has created or is creating.
func (s *Shard) created() int32 {
	var n int32
	for _, instance := range s.Reported.Instances {
		if !instance.Terminating && !instance.Uncreated && !s.Selected(instance.ID) {
			n++
		}
	}
	return n
}

// uncreated returns the ids of the instances that the shard has not created, the newest
// last.
func (s *Shard) uncreated() []string {
	var ids []string
	for _, instance := range s.Reported.Instances {
		if instance.Uncreated && !instance.Terminating && !s.Selected(instance.ID) {
			ids = append(ids, instance.ID)
		}
	}
	return ids
}
