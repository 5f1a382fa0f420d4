// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import "slices"

// Shard is the part of a pool that is on one shard.
type Shard struct {
	ID string
	// Size is the current number of instances that the shard should have: the size of the
	// pool's shard group, or before it exists, of the server's group.
	Size int32
	// Min is the size that the shard keeps at least. Size is not less.
	Min int32
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
	// Reported is the group on the server, nil if the server has no group.
	Reported *Group
	Stock    Stock
}

// Group is the pool's group on a shard as the server reports it.
type Group struct {
	Size int32
	// ListsInstances is false if the server does not report Instances.
	ListsInstances bool
	// Running is the number of running instances. It is used if Instances are not listed.
	Running int32
	// Instances are listed from the oldest to the newest.
	Instances []Instance
}

// Instance is an instance as the server reports it.
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

// Stock describes which instances a shard cannot create, and which it has lent to other
// shards for that reason.
type Stock struct {
	// Usable reports whether the shard is connected and its groups are known.
	Usable bool
	// Missing is how many instances the shard reports that it has no capacity for.
	Missing int32
	// Due reports whether it has reported that for long enough to lend them.
	Due bool
	// Lent is how many instances the shard has lent to others, less than 0 if it has
	// borrowed them. LentOf are the replicas of the pool when that was stored.
	Lent, LentOf int32
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
// Machine of such an instance is being deleted, it is a candidate of the next scale-down.
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
// the shard would replace lowers the size by one, down to the minimum.
func (s *Shard) RemoveDrained(drained []string) (size int32, removeFirst []string) {
	size = s.Size
	var selected []string
	for _, id := range drained {
		if size > s.Min && !s.Selected(id) && !s.Terminated(id) {
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

// BeingRemoved returns how many instances of the shard are being removed: the number that
// drains or terminates, or the number beyond the size, whichever is larger. It is not known before the shard is synced. A fixed shard that is not synced counts as 0,
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
// (see scale).
func (s *Shard) NotRunning(candidates []Candidate) []string { return s.shortfall(candidates).pending }

// shortfall is the part of a shard's size that does not exist yet.
type shortfall struct {
	// notYetSent is the number of instances that the server has no request for.
	notYetSent int32
	// pending are the ids of instances that the server is creating, the newest last.
	pending []string
}

func (s shortfall) total() int32 { return s.notYetSent + int32(len(s.pending)) }

// remove returns the ids of the pending instances to name when n instances are
// removed. Instances that were not yet sent need no name.
func (s shortfall) remove(n int32) []string {
	named := min(max(int(n-s.notYetSent), 0), len(s.pending))
	return s.pending[len(s.pending)-named:]
}

// shortfall returns the missing instances without the candidates, which are removed
// before them.
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
