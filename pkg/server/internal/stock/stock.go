// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package stock remembers which candidates of groups a provider has rejected for lack of capacity
// (docs/server.md#candidates).
package stock

import (
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

// Stock has the knowledge of a leader about the capacity for the candidates of its groups. A new leader
// starts without it, and counts times anew. The zero value is empty. All methods of a nil Stock
// report that nothing is known.
type Stock struct {
	mu      sync.Mutex
	byGroup map[instance.GroupKey]map[string]*entry
}

// entry is the knowledge about the candidates of one hash: other settings need another capacity.
type entry struct {
	// since is when the last request was rejected, or when the candidate was first seen.
	since time.Time
	// message is why the last request was rejected, "" if an instance has disproved it.
	message string
	// known are the instances of the candidate that the provider listed at that time.
	known map[string]bool
}

// Observe begins to count for the candidates of a group, and forgets all others.
func (s *Stock) Observe(group *groups.Group, now time.Time) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(group.Variants) == 0 {
		delete(s.byGroup, group.Key)
		return
	}
	before, current := s.byGroup[group.Key], make(map[string]*entry, len(group.Variants))
	for _, v := range group.Variants {
		known := before[v.InfraConfigHash]
		if known == nil {
			known = &entry{since: now}
		}
		current[v.InfraConfigHash] = known
	}
	if s.byGroup == nil {
		s.byGroup = map[instance.GroupKey]map[string]*entry{}
	}
	s.byGroup[group.Key] = current
}

// Rejected stores that a request of a candidate was or would be rejected. instances are the instances
// of the group. It returns whether the message is new.
func (s *Stock) Rejected(key instance.GroupKey, hash, message string, instances []instance.Instance, now time.Time) (changed bool) {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byGroup[key][hash]
	if e == nil {
		return false // the group was changed meanwhile
	}
	changed = e.message != message
	e.since, e.message, e.known = now, message, map[string]bool{}
	for n := range instances {
		if i := &instances[n]; i.Known && i.InfraConfigHash == hash {
			e.known[i.ID] = true
		}
	}
	return changed
}

// Since returns since when no request of a candidate was rejected, and false if that is not known.
func (s *Stock) Since(key instance.GroupKey, hash string) (time.Time, bool) {
	if s == nil {
		return time.Time{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byGroup[key][hash]
	if e == nil {
		return time.Time{}, false
	}
	return e.since, true
}

// Message returns why the last request of a candidate was rejected, "" if nothing is known against it:
// an instance that has come up since disproves it. It is a state and has no clock.
func (s *Stock) Message(key instance.GroupKey, hash string, instances []instance.Instance) string {
	if s == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byGroup[key][hash]
	if e == nil {
		return ""
	}
	for n := range instances {
		i := &instances[n]
		if i.InfraConfigHash == hash && i.Known && i.ProviderID != "" && !i.Down() && !e.known[i.ID] {
			e.message = ""
		}
	}
	return e.message
}

// Remove removes a group that no longer exists.
func (s *Stock) Remove(key instance.GroupKey) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byGroup, key)
}

// Use is how many instances of a group are of a candidate.
type Use struct {
	Variant *groups.Variant
	// Instances is the number of managed instances that are not being deleted.
	Instances int
	// Unavailable is why the provider creates no instance of the candidate now, "" if nothing is
	// known.
	Unavailable string
}

// Uses returns the use of each candidate of a group, in their order. It returns nil for a group
// without candidates.
func (s *Stock) Uses(group *groups.Group, instances []instance.Instance) []Use {
	choices := group.Choices()
	if len(choices) == 0 {
		return nil
	}
	counts := candidates.Count(choices, candidates.Assign(choices, Staying(instances)))
	uses := make([]Use, len(group.Variants))
	for n := range group.Variants {
		v := &group.Variants[n]
		uses[n] = Use{Variant: v, Instances: counts[n], Unavailable: s.Message(group.Key, v.InfraConfigHash, instances)}
	}
	return uses
}

// Staying returns the managed instances that are not being deleted, as candidates count them.
func Staying(instances []instance.Instance) []candidates.Instance {
	var staying []candidates.Instance
	for n := range instances {
		if i := &instances[n]; !i.OnDemand && !i.Returned && !i.BeingDeleted() {
			staying = append(staying, Of(i))
		}
	}
	return staying
}

// Of returns an instance as candidates count it.
func Of(i *instance.Instance) candidates.Instance {
	return candidates.Instance{ID: i.ID, Hash: i.InfraConfigHash, CreatedAt: i.CreatedAt}
}
