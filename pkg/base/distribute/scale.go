// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"cmp"
	"math"
	"slices"
)

// scale changes the sizes of shards until they add up to replicas. It moves no
// instance without need: a scale-up shrinks no shard, and a scale-down grows no shard.
//
// A scale-up adds instances one by one to the smallest shard that is not fixed.
//
// A scale-down removes, until there are replicas left:
//  1. the deletion candidates, in the order of sortCandidates;
//  2. instances that do not exist yet: instances that were not yet requested from a
//     shard, then instances that it is still creating, the newest first. The cluster
//     autoscaler lowers the replicas without a candidate when it gives up waiting
//     for an instance, and no running instance must be terminated for that
//     (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md);
//  3. any others. The server selects them.
//
// Steps 2 and 3 remove instances one by one from the largest shard that is not fixed. No shard
// gets smaller than its minimum. scale
// returns the new sizes, and by shard the ids of the instances of steps 1 and 2 that exist:
// the shard must terminate these and not others.
func scale(shards []Shard, replicas int32, candidates []Candidate) (sizes []int32, selected [][]string) {
	sizes, selected = Sizes(shards), make([][]string, len(shards))
	surplus := Surplus(sizes, replicas)
	if surplus == 0 {
		growVariable(shards, sizes, max(replicas, 0)-Total(sizes))
		return sizes, selected
	}

	candidates = sortCandidates(shards, candidates)
	for _, candidate := range candidates {
		i := indexOf(shards, candidate.Shard)
		if surplus > 0 && sizes[i] > shards[i].Min {
			sizes[i]--
			surplus--
			selected[i] = append(selected[i], candidate.ID)
		}
	}

	before, shortfalls := slices.Clone(sizes), make([]shortfall, len(shards))
	missing, removable := make([]int32, len(shards)), make([]int32, len(shards))
	for i := range shards {
		if !shards[i].Fixed {
			shortfalls[i] = shards[i].shortfall(candidates)
			missing[i] = min(shortfalls[i].total(), sizes[i]-shards[i].Min)
		}
	}
	surplus -= shrink(sizes, missing, surplus)
	for i := range shards {
		if !shards[i].Fixed {
			removable[i] = sizes[i] - shards[i].Min
		}
	}
	shrink(sizes, removable, surplus)
	for i := range shards {
		selected[i] = append(selected[i], shortfalls[i].remove(before[i]-sizes[i])...)
	}
	return sizes, selected
}

// sortCandidates returns the candidates in the order of their removal: annotated
// ones first, the earliest annotation first, because their Nodes are drained and the
// replicas are lowered for them. A Machine that is being deleted may be meant to be
// replaced. Instances that an earlier scale-down selected or that are already terminated
// are left out: the sizes do not count them.
func sortCandidates(shards []Shard, candidates []Candidate) []Candidate {
	candidates = slices.Clone(candidates)
	slices.SortFunc(candidates, func(a, b Candidate) int {
		switch {
		case a.Annotated && !b.Annotated:
			return -1
		case !a.Annotated && b.Annotated:
			return 1
		}
		return cmp.Or(cmp.Compare(a.Annotation, b.Annotation), cmp.Compare(a.ID, b.ID))
	})
	// An instance may have two Machines, and a server rejects an id that is named
	// twice.
	seen := map[string]bool{}
	return slices.DeleteFunc(candidates, func(candidate Candidate) bool {
		i, duplicate := indexOf(shards, candidate.Shard), seen[candidate.ID]
		seen[candidate.ID] = true
		return i < 0 || duplicate || shards[i].Selected(candidate.ID) || shards[i].Terminated(candidate.ID)
	})
}

// Kept returns the first deletion candidate that a scale-down to replicas cannot remove, because
// its shard would get smaller than its minimum. It returns nil if there is none.
func Kept(shards []Shard, replicas int32, candidates []Candidate) *Candidate {
	sizes := Sizes(shards)
	surplus := Surplus(sizes, replicas)
	for _, candidate := range sortCandidates(shards, candidates) {
		if surplus == 0 {
			return nil
		}
		i := indexOf(shards, candidate.Shard)
		if sizes[i] <= shards[i].Min {
			return &candidate
		}
		sizes[i]--
		surplus--
	}
	return nil
}

func indexOf(shards []Shard, id string) int {
	return slices.IndexFunc(shards, func(shard Shard) bool { return shard.ID == id })
}

// stepReplicas returns the replicas to which scale scales down now, if limits delay the
// scale-down to replicas. The deletion candidates and the instances that do not exist or
// run yet are removed at once: the candidates were drained for it, or their Machines are
// being deleted, and their shard would replace them; the others run nothing. The
// candidates count among the removable instances. The step of a scale-up is replicas.
func stepReplicas(shards []Shard, replicas int32, limits Limits, candidates []Candidate) int32 {
	sizes := Sizes(shards)
	surplus, total := Surplus(sizes, replicas), Total(sizes)
	if surplus == 0 {
		return replicas
	}
	candidates = sortCandidates(shards, candidates)
	var chosen, missing int32
	for _, candidate := range candidates {
		if i := indexOf(shards, candidate.Shard); sizes[i] > shards[i].Min {
			sizes[i]--
			chosen++
		}
	}
	for i := range shards {
		if !shards[i].Fixed {
			missing += min(shards[i].shortfall(candidates).total(), max(sizes[i]-shards[i].Min, 0))
		}
	}
	passing := min(surplus, chosen+missing)
	others := min(surplus-passing, max(limits.Removable-chosen, 0), max(total-passing-limits.Floor, 0))
	return total - passing - others
}

// stepSizes returns the sizes that a pool without Machines gets now, if limits delay the
// change to the sizes wanted. Shards that grow do so at once. The others lose the instances
// that do not exist or run yet, and as many others as the limits allow, one by one from the
// largest shard.
func stepSizes(shards []Shard, wanted []int32, limits Limits) []int32 {
	sizes, shrinkable := Sizes(shards), make([]int32, len(shards))
	for i := range shards {
		excess := sizes[i] - wanted[i]
		if excess <= 0 {
			sizes[i] = wanted[i]
			continue
		}
		missing := min(excess, shards[i].shortfall(nil).total())
		sizes[i] -= missing
		shrinkable[i] = excess - missing
	}
	shrink(sizes, shrinkable, min(limits.Removable, max(Total(sizes)-limits.Floor, 0)))
	return sizes
}

// Sizes returns the current sizes of shards.
func Sizes(shards []Shard) []int32 {
	sizes := make([]int32, len(shards))
	for i, shard := range shards {
		sizes[i] = shard.Size
	}
	return sizes
}

// Total returns the sum of sizes.
func Total(sizes []int32) int32 {
	var total int32
	for _, size := range sizes {
		total += size
	}
	return total
}

// Surplus returns how many instances a scale-down from sizes to replicas removes, 0
// if sizes need not shrink. Negative replicas count as 0.
func Surplus(sizes []int32, replicas int32) int32 {
	return max(Total(sizes)-max(replicas, 0), 0)
}

// spread returns sizes that add up to replicas: a fixed shard keeps its size, every other
// shard gets its minimum, and the shards get equal shares of the rest (see grow). Fewer replicas
// than that leave the shards at their minima.
func spread(shards []Shard, replicas int32) []int32 {
	sizes := Sizes(shards)
	for i := range shards {
		if !shards[i].Fixed {
			sizes[i] = shards[i].Min
		}
	}
	growVariable(shards, sizes, max(replicas, 0)-Total(sizes))
	return sizes
}

// areEven reports whether no move of an instance brings the sizes of the shards closer to each
// other: from a shard that is not fixed, and has more than its minimum, to another.
func areEven(shards []Shard) bool {
	for i := range shards {
		for j := range shards {
			if !shards[i].Fixed && !shards[j].Fixed && shards[i].Size > max(shards[i].Min, shards[j].Size+1) {
				return false
			}
		}
	}
	return true
}

// stayEven returns sizes that add up to replicas, from sizes for which areEven: instances are added
// one by one to the smallest shard, or removed from the largest. The result is even, too.
func stayEven(shards []Shard, replicas int32) []int32 {
	sizes, removable := Sizes(shards), make([]int32, len(shards))
	for i := range shards {
		if !shards[i].Fixed {
			removable[i] = shards[i].Size - shards[i].Min
		}
	}
	shrink(sizes, removable, Surplus(sizes, replicas))
	growVariable(shards, sizes, max(replicas, 0)-Total(sizes))
	return sizes
}

// isEven reports whether no size exceeds another by more than one.
func isEven(sizes []int32) bool {
	return len(sizes) == 0 || slices.Max(sizes)-slices.Min(sizes) <= 1
}

// even gives each of the given number of shards an equal share of replicas. The
// shards listed first get the remainder, one each. The result has one entry per shard
// in the order of the shards, so that an administrator decides with that order which
// zone gets the odd instance: 5 replicas on shards [b, a] are 3 for b and 2 for a.
//
// Negative replicas count as 0. even returns nil if shards is not positive.
func even(replicas int32, shards int) []int32 {
	if shards <= 0 {
		return nil
	}
	replicas = max(replicas, 0)
	share, rest := replicas/int32(shards), int(replicas%int32(shards))
	sizes := make([]int32, shards)
	for i := range sizes {
		sizes[i] = share
		if i < rest {
			sizes[i]++
		}
	}
	return sizes
}

// grow adds n to sizes, one by one to the smallest, and among equal sizes to the size
// listed first. Sizes of even become sizes of even; other sizes
// get closer to that with every growth.
func grow(sizes []int32, n int32) {
	for n > 0 && len(sizes) > 0 {
		// All of the smallest grow together, up to the next larger size.
		smallest, next, count := slices.Min(sizes), int32(math.MaxInt32), int32(0)
		for _, size := range sizes {
			if size == smallest {
				count++
			} else {
				next = min(next, size)
			}
		}
		step := max(min(next-smallest, n/count), 1)
		for i := range sizes {
			if sizes[i] == smallest && n > 0 {
				sizes[i] += step
				n -= step
			}
		}
	}
}

// growSome adds n to some of the sizes (see grow).
func growSome(sizes []int32, n int32, some []bool) {
	var chosen []int32
	for i := range sizes {
		if some[i] {
			chosen = append(chosen, sizes[i])
		}
	}
	grow(chosen, n)
	for i := range sizes {
		if some[i] {
			sizes[i], chosen = chosen[0], chosen[1:]
		}
	}
}

// growVariable adds n to the sizes of the shards that are not fixed (see grow).
func growVariable(shards []Shard, sizes []int32, n int32) {
	variable := make([]bool, len(shards))
	for i := range shards {
		variable[i] = !shards[i].Fixed
	}
	growSome(sizes, n, variable)
}

// shrink removes up to n from sizes, one by one from the largest, and among equal
// sizes from the size listed last. It removes at most limits[i] from sizes[i], and no
// size becomes negative. It returns how much it removed.
func shrink(sizes, limits []int32, n int32) (removed int32) {
	limits = slices.Clone(limits)
	for removed < n {
		// All of the largest shrink together, down to the next smaller size or until
		// one of them reaches its limit.
		var largest, next, count int32
		for i, size := range sizes {
			if limits[i] > 0 {
				largest = max(largest, size)
			}
		}
		if largest == 0 {
			break
		}
		step := largest
		for i, size := range sizes {
			switch {
			case limits[i] <= 0:
			case size == largest:
				count++
				step = min(step, limits[i])
			default:
				next = max(next, size)
			}
		}
		step = max(min(step, largest-next, (n-removed)/count), 1)
		for i := len(sizes) - 1; i >= 0; i-- {
			if sizes[i] == largest && limits[i] > 0 && removed < n {
				sizes[i] -= step
				limits[i] -= step
				removed += step
			}
		}
	}
	return removed
}

// Ordered is an instance in the order in which a server deletes surplus instances.
type Ordered struct {
	ID string
	// Reason is why the instance is being deleted or is to be replaced, "" if only the size
	// decides.
	Reason string
}

// Leaving returns the first n instances that a server deletes, if its order of surplus instances is
// known. The instances of removeFirst go before others, in the same order. exact is false if
// other instances may be deleted instead: the order does not have n instances, or
// removeFirst names an instance that is replaced, or that is not in the order. In these cases the
// server may delete the youngest of the others, and not the oldest, because the replacement is the
// surplus instance.
func Leaving(order []Ordered, removeFirst []string, n int) (leaving []Ordered, exact bool) {
	var named, others []Ordered
	exact = n <= len(order)
	found := map[string]bool{}
	for _, instance := range order {
		if !slices.Contains(removeFirst, instance.ID) {
			others = append(others, instance)
			continue
		}
		named = append(named, instance)
		found[instance.ID] = true
		exact = exact && (instance.Reason == "" || n <= len(named))
	}
	for _, id := range removeFirst {
		exact = exact && found[id]
	}
	leaving = slices.Concat(named, others)
	leaving = leaving[:max(min(n, len(leaving)), 0)]
	return leaving, exact
}
