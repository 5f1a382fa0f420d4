// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

// BeingRemoved returns how many instances of the shard are being removed: those that
// drain or terminate, or those that the server has beyond the size, whichever are more.
// It is not known before the shard is synced. A fixed shard that is not synced counts as 0,
// because a scale-down does not change its size.
func (s *Shard) BeingRemoved() (removed int32, known bool) {
	switch {
	case !s.Synced:
		return 0, s.Fixed
	case s.Reported == nil:
		return 0, true
	case !s.Reported.ListsInstances:
		return max(s.Reported.Running-s.Size, 0), true
	}
	for _, instance := range s.Reported.Instances {
		if instance.Draining || instance.Terminating {
			removed++
		}
	}
	return max(removed, int32(len(s.Reported.Instances))-s.Size), true
}

// NotRunning returns the ids of pending instances that a scale-down removes before others
// (see Scale).
func (s *Shard) NotRunning(candidates []Candidate) []string { return s.shortfall(candidates).pending }

// Step returns the replicas to which Scale scales down now, if a guard delays the
// scale-down to replicas. The deletion candidates and the instances that do not exist or
// run yet are removed at once: the candidates were drained for it, or their Machines are
// being deleted, and their shard would replace them; the others run nothing. Of all other
// instances at most removable are removed, less the candidates, and none if fewer than
// floor remain. The step of a scale-up is replicas.
func Step(shards []Shard, replicas, floor int32, candidates []Candidate, removable int32) int32 {
	sizes := Sizes(shards)
	surplus, total := Surplus(sizes, replicas), Total(sizes)
	if surplus == 0 {
		return replicas
	}
	candidates = sortCandidates(shards, candidates)
	var chosen, missing int32
	for _, candidate := range candidates {
		if i := indexOf(shards, candidate.Shard); sizes[i] > 0 {
			sizes[i]--
			chosen++
		}
	}
	for i := range shards {
		if !shards[i].Fixed {
			missing += min(shards[i].shortfall(candidates).total(), sizes[i])
		}
	}
	passing := min(surplus, chosen+missing)
	others := min(surplus-passing, max(removable-chosen, 0), max(total-passing-floor, 0))
	return total - passing - others
}

// StepSizes returns the sizes that a pool without Machines gets now, if a guard delays the
// change to the sizes wanted. Shards that grow do so at once. The others lose the instances
// that do not exist or run yet, and at most removable others, and none if fewer than floor
// remain. These are removed one by one from the largest shard.
func StepSizes(shards []Shard, wanted []int32, floor, removable int32) []int32 {
	sizes, limits := Sizes(shards), make([]int32, len(shards))
	for i := range shards {
		excess := sizes[i] - wanted[i]
		if excess <= 0 {
			sizes[i] = wanted[i]
			continue
		}
		missing := min(excess, shards[i].shortfall(nil).total())
		sizes[i] -= missing
		limits[i] = excess - missing
	}
	shrink(sizes, limits, min(removable, max(Total(sizes)-floor, 0)))
	return sizes
}
