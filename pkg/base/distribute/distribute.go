// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package distribute divides the replicas of a pool among its shards (Divide), and has the
// rule which instances a scale-down removes.
//
// Several programs follow the rule. Controller machinepool writes a Division into the shard
// groups of a pool. Controller poolmember deletes the Machines of the selected instances.
// Controller machine deletes an instance on its shard only after the scale-down is planned
// and sent, because the shard would replace it otherwise. The server terminates the
// selected instances before others.
package distribute

import "slices"

// Pool is a pool whose replicas are divided among its shards.
type Pool struct {
	// Shards are in the order of the pool's spec.
	Shards   []Shard
	Replicas int32
	// Machines reports whether the instances have Machines, so that a scale-down selects
	// them one by one.
	Machines bool
	// Candidates are the deletion candidates of a pool with Machines.
	Candidates []Candidate
	// Imported reports whether the sizes of all shards were imported for these replicas.
	Imported bool
	// MayMove is set if the pool moves instances because of a shortfall, and the last move
	// is long enough ago.
	MayMove bool
	// Limits delay a scale-down, nil if it is done at once.
	Limits *Limits
}

// Limits bound the next step of a scale-down. Deletion candidates and instances that do not
// exist or run yet are removed in spite of them.
type Limits struct {
	// Floor is how many instances remain.
	Floor int32
	// Removable is how many instances may be removed.
	Removable int32
}

// Division is how the replicas of a pool are divided. Its slices have an entry for each
// shard of the pool.
type Division struct {
	// Replicas are the replicas of the pool, or of a step between the current sizes and them.
	Replicas int32
	Sizes    []int32
	// RemoveFirst are the ids of the instances to remove before others.
	RemoveFirst [][]string
	// Uneven is set if the sizes are no equal shares and stay nevertheless.
	Uneven bool
	// Lent are the new values of Stock.Lent, nil if the pool has no loans.
	Lent []int32
	// Moved is set if an instance moves from one shard to another because of a shortfall.
	Moved bool
	// Left is how many instances the limits leave for later steps.
	Left int32
}

// Divide divides the replicas of a pool among its shards.
//
// A pool with Machines changes as little as possible, because its instances are selected
// one by one: it may become uneven, and stays uneven until it grows (see scale).
//
// Other pools are divided evenly. Which shards have an instance more than others changes only
// with the replicas: another order of the shards moves no instance. A group that existed before
// its pool may be divided in another way. As long as the pool has as many replicas as were
// imported, on the same shards, every shard keeps its size: importing a group terminates no
// instance.
//
// A shard keeps its minimum, and the others get equal shares of the rest.
//
// A shard that is not configured keeps its size, which counts, so that the pool can be
// scaled on the others. When it is configured again, all sizes stay until the replicas
// change, as after an import.
//
// Shards may run instances that others lack the capacity for (see lend). A scale-down with
// limits is done in steps.
func Divide(pool Pool) Division {
	division := pool.divide(pool.Replicas)
	if pool.Limits == nil || division.Moved || !shrinks(pool.Shards, division.Sizes) {
		return division
	}
	if pool.Machines {
		division = pool.divide(stepReplicas(pool.Shards, pool.Replicas, *pool.Limits, pool.Candidates))
	} else {
		division.Sizes = stepSizes(pool.Shards, division.Sizes, *pool.Limits)
		division.RemoveFirst = removeFirst(pool.Shards, division.Sizes, make([][]string, len(pool.Shards)))
	}
	division.Left = Surplus(division.Sizes, pool.Replicas)
	return division
}

// divide divides replicas without limits. Loans begin only while the sizes do not change
// for another reason.
func (p *Pool) divide(replicas int32) Division {
	if hasLoans(p.Shards) {
		return p.withLoans(replicas)
	}
	division, current := p.withoutLoans(replicas), Sizes(p.Shards)
	if p.MayMove && hasDueShortfall(p.Shards) && Total(current) == replicas && slices.Equal(current, division.Sizes) {
		if lent := p.withLoans(replicas); lent.Moved {
			return lent
		}
	}
	return division
}

func (p *Pool) withLoans(replicas int32) Division {
	loans := lend(p.Shards, replicas, lendOptions{
		candidates:  p.Candidates,
		even:        !p.Machines,
		mayMove:     p.MayMove,
		interrupted: isInterrupted(p.Shards, replicas),
	})
	return Division{
		Replicas: replicas, Sizes: loans.sizes, RemoveFirst: removeFirst(p.Shards, loans.sizes, loans.selected),
		Lent: loans.lent, Moved: loans.moved,
	}
}

func (p *Pool) withoutLoans(replicas int32) Division {
	division, selected := Division{Replicas: replicas}, make([][]string, len(p.Shards))
	current, shares := Sizes(p.Shards), spread(p.Shards, replicas)
	switch {
	case p.Machines:
		division.Sizes, selected = scale(p.Shards, replicas, p.Candidates)
		division.Uneven = !slices.Equal(division.Sizes, shares)
	case p.Imported && Total(current) == replicas:
		division.Sizes = current
		division.Uneven = !isEven(current)
	case areEven(p.Shards):
		division.Sizes = stayEven(p.Shards, replicas)
		// The sizes stay when a fixed shard is configured again, or a minimum is lowered.
		division.Uneven = !isEven(division.Sizes)
	default:
		division.Sizes = shares
		division.Uneven = !isEven(shares)
	}
	division.RemoveFirst = removeFirst(p.Shards, division.Sizes, selected)
	return division
}

// removeFirst returns the next RemoveFirst of each shard.
func removeFirst(shards []Shard, sizes []int32, selected [][]string) [][]string {
	next := make([][]string, len(shards))
	for i := range shards {
		next[i] = shards[i].NextRemoveFirst(sizes[i], selected[i])
	}
	return next
}

// shrinks reports whether a shard gets smaller.
func shrinks(shards []Shard, sizes []int32) bool {
	for i := range shards {
		if sizes[i] < shards[i].Size {
			return true
		}
	}
	return false
}
