// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"sync"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// Shortfalls contains the groups that the provider has no capacity or quota for. It is a
// state and has no clock: a further attempt that fails for the same reason changes nothing.
// A new leader starts without shortfalls and finds them with its first attempts. The zero
// value is empty.
type Shortfalls struct {
	mu      sync.Mutex
	byGroup map[instance.GroupKey]shortfall
}

// shortfall is the lack of capacity that the last attempts for a group have met.
type shortfall struct {
	// infraConfigHash is that of the group. With another one, other capacity is needed.
	infraConfigHash string
	message         string
	// known are the instances that the provider listed at that time. Another one disproves
	// the shortfall.
	known map[string]bool
}

// Of returns how many of these managed instances of a group are missing because the
// provider has no capacity, and the reason; zero if there is none. An instance counts from
// the moment when its provider id is recorded: a cloud may accept a request and reject it
// later, again and again.
func (s *Shortfalls) Of(group *groups.Group, instances []instance.Instance) (missing int32, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	current, found := s.byGroup[group.Key]
	if !found {
		return 0, ""
	}
	missing, created := group.Size, false
	for n := range instances {
		i := &instances[n]
		if i.OnDemand || !i.Known || i.ProviderID == "" || i.Down() || i.DeleteReason != "" {
			continue
		}
		missing--
		created = created || !current.known[i.ID]
	}
	if missing <= 0 || created || current.infraConfigHash != group.InfraConfigHash {
		delete(s.byGroup, group.Key)
		return 0, ""
	}
	return missing, current.message
}

// attempted records the result of an attempt to create a managed instance. Only a lack of
// capacity is a shortfall. Other errors do not end one: they say nothing about capacity.
func (s *Shortfalls) attempted(group *groups.Group, instances []instance.Instance, err error) {
	lack, ok := provider.AsCapacityError(err)
	if !ok || s == nil {
		return
	}
	known := map[string]bool{}
	for n := range instances {
		if i := &instances[n]; i.Known && !i.OnDemand {
			known[i.ID] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byGroup == nil {
		s.byGroup = map[instance.GroupKey]shortfall{}
	}
	s.byGroup[group.Key] = shortfall{infraConfigHash: group.InfraConfigHash, message: lack.Error(), known: known}
}

// remove removes the shortfall of a group that does not exist any more.
func (s *Shortfalls) remove(key instance.GroupKey) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byGroup, key)
}
