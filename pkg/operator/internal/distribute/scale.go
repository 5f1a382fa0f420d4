// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"cmp"
	"slices"
)

// Shard is the part of a pool that is on one shard.
type Shard struct {
	ID string
	// Size is the current number of instances that the shard should have: that of the
	// pool's shard group, or before there is one, that of the server's group.
	Size int32
	// Fixed is set for a shard that is not configured. Its size stays as it is, except
	// that a scale-down removes deletion candidates from it too.
	Fixed bool
	// HasShardGroup reports whether the pool has a shard group for the shard.
	HasShardGroup bool
	// RemoveFirst are the ids of the instances that earlier scale-downs selected. The
	// server terminates them before others.
	RemoveFirst []string
	// Synced reports whether Reported is known.
	Synced bool
	// Reported is the group on the server, nil if the server has none.
	Reported *Group
}

// Group is a group as its server reports it.
type Group struct {
	Size int32
	// ListsInstances is false if the server does not report Instances.
	ListsInstances bool
	// Running is the number of running instances. It is used if Instances are not listed.
	Running int32
	// Instances are listed from the oldest to the newest.
	Instances []Instance
}

// Instance is an instance as its server reports it.
type Instance struct {
	ID string
	// Pending is set while the server is creating the instance.
	Pending bool
	// Draining is set while the instance is drained.
	Draining bool
	// Uncreated is set while a pending instance has no provider id.
	Uncreated bool
	// Terminating is set while the server terminates the instance, and afterwards.
	Terminating bool
}

// Candidate is a deletion candidate: an instance whose Machine was annotated for
// deletion or is being deleted.
type Candidate struct {
	ID, Shard string
	// Annotated reports whether the Machine is annotated, and Annotation is the value,
	// a time.
	Annotated  bool
	Annotation string
}

// Scale changes the sizes of shards until they add up to replicas. It moves no
// instance without need: a scale-up shrinks no shard, and a scale-down grows none.
//
// A scale-up adds instances one by one to the smallest shard that is not fixed.
//
// A scale-down removes, until there are replicas left:
//  1. the deletion candidates, in the order of sortCandidates;
//  2. instances that do not exist yet: those that were not yet requested from a
//     shard, then those that it is still creating, the newest first. The cluster
//     autoscaler lowers the replicas without a candidate when it gives up waiting
//     for an instance, and that must not cost a running one;
//  3. any others. The server selects which ones.
//
// Steps 2 and 3 remove one by one from the largest shard that is not fixed. Scale returns the new
// sizes, and by shard the ids of the instances of steps 1 and 2 that exist: the
// shard must terminate these and not others.
func Scale(shards []Shard, replicas int32, candidates []Candidate) (sizes []int32, selected [][]string) {
	sizes, selected = Sizes(shards), make([][]string, len(shards))
	surplus := Surplus(sizes, replicas)
	if surplus == 0 {
		growVariable(shards, sizes, max(replicas, 0)-Total(sizes))
		return sizes, selected
	}

	candidates = sortCandidates(shards, candidates)
	for _, candidate := range candidates {
		i := indexOf(shards, candidate.Shard)
		if surplus > 0 && sizes[i] > 0 {
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
			missing[i] = shortfalls[i].total()
		}
	}
	surplus -= shrink(sizes, missing, surplus)
	for i := range shards {
		if !shards[i].Fixed {
			removable[i] = sizes[i]
		}
	}
	shrink(sizes, removable, surplus)
	for i := range shards {
		selected[i] = append(selected[i], shortfalls[i].remove(before[i]-sizes[i])...)
	}
	return sizes, selected
}

// Sizes returns the current sizes of shards.
func Sizes(shards []Shard) []int32 {
	sizes := make([]int32, len(shards))
	for i, shard := range shards {
		sizes[i] = shard.Size
	}
	return sizes
}

// growVariable adds n to the sizes of the shards that are not fixed (see grow).
func growVariable(shards []Shard, sizes []int32, n int32) {
	var variable []int32
	for i := range shards {
		if !shards[i].Fixed {
			variable = append(variable, sizes[i])
		}
	}
	grow(variable, n)
	for i := range shards {
		if !shards[i].Fixed {
			sizes[i], variable = variable[0], variable[1:]
		}
	}
}

// sortCandidates returns the candidates in the order of their removal: annotated
// ones first, the earliest annotation first, because their Nodes are drained and the
// replicas are lowered for them. A Machine that is being deleted may be meant to be
// replaced. Instances that an earlier scale-down selected and those that are already
// terminated are left out: the sizes do not count them.
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

func indexOf(shards []Shard, id string) int {
	return slices.IndexFunc(shards, func(shard Shard) bool { return shard.ID == id })
}

// shortfall is the part of a shard's size that does not exist yet.
type shortfall struct {
	// notYetSent is the number of instances that the server has no request for.
	notYetSent int32
	// pending are the ids of instances that the server is creating, the newest last.
	pending []string
}

func (s shortfall) total() int32 { return s.notYetSent + int32(len(s.pending)) }

// remove returns the ids of the pending instances to name when n instances are
// removed. Those that were not yet sent need no name.
func (s shortfall) remove(n int32) []string {
	named := min(max(int(n-s.notYetSent), 0), len(s.pending))
	return s.pending[len(s.pending)-named:]
}

// shortfall returns what is missing without the candidates, which are removed
// before it.
func (s *Shard) shortfall(candidates []Candidate) shortfall {
	if !s.HasShardGroup || !s.Synced || s.Reported != nil && !s.Reported.ListsInstances {
		return shortfall{}
	}
	reported := Group{}
	if s.Reported != nil {
		reported = *s.Reported
	}
	missing, pending := s.Size, []string(nil)
	for _, instance := range reported.Instances {
		candidate := slices.ContainsFunc(candidates, func(c Candidate) bool { return c.ID == instance.ID && c.Shard == s.ID })
		switch {
		case instance.Terminating || s.Selected(instance.ID):
		case candidate || !instance.Pending:
			missing--
		default:
			pending = append(pending, instance.ID)
		}
	}
	missing = max(missing, 0)
	notYetSent := min(missing, max(s.Size-reported.Size, 0))
	// Pending instances that replace others are not missing.
	newest := min(int(missing-notYetSent), len(pending))
	return shortfall{notYetSent, pending[len(pending)-newest:]}
}

// Selected reports whether an earlier scale-down selected an instance.
func (s *Shard) Selected(id string) bool { return slices.Contains(s.RemoveFirst, id) }

// Terminated reports whether the server is known to have terminated an instance, or
// to be terminating it.
func (s *Shard) Terminated(id string) bool {
	if !s.listsInstances() {
		return false
	}
	i := slices.IndexFunc(s.Reported.Instances, func(instance Instance) bool { return instance.ID == id })
	return i < 0 || s.Reported.Instances[i].Terminating
}

// Replaces reports whether the shard replaces an instance that is deleted on it: the
// size counts the instance, because no scale-down selected it.
func (s *Shard) Replaces(id string) bool { return s.Size > 0 && !s.Selected(id) }

// NextRemoveFirst returns RemoveFirst for a new size, for which selected were
// selected. Ids stay until the size changes after their instances are terminated. A
// scale-up revokes the selection of instances that are no longer surplus; if the
// Machine of one is being deleted, it is a candidate of the next scale-down.
func (s *Shard) NextRemoveFirst(size int32, selected []string) []string {
	if !s.HasShardGroup {
		return selected
	}
	if s.Size == size {
		return s.RemoveFirst
	}
	kept := slices.DeleteFunc(slices.Clone(s.RemoveFirst), s.Terminated)
	if size > s.Size && s.listsInstances() {
		running := 0
		for _, instance := range s.Reported.Instances {
			if !instance.Terminating {
				running++
			}
		}
		kept = kept[:min(len(kept), max(running-int(size), 0))]
	}
	return append(kept, selected...)
}

// RemoveDrained returns the size and RemoveFirst of a shard whose pool is being
// deleted. Cluster API drains the Machines of such a pool. Each drained instance that
// the shard would replace lowers the size by one.
func (s *Shard) RemoveDrained(drained []string) (size int32, removeFirst []string) {
	size = s.Size
	var selected []string
	for _, id := range drained {
		if size > 0 && !s.Selected(id) && !s.Terminated(id) {
			size--
			selected = append(selected, id)
		}
	}
	return size, s.NextRemoveFirst(size, selected)
}

// listsInstances reports whether the instances on the server are known.
func (s *Shard) listsInstances() bool {
	return s.Synced && s.Reported != nil && s.Reported.ListsInstances
}
