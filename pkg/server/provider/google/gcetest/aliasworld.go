// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcetest

import (
	"slices"
	"time"
)

// Owner returns the machine at which others reach an alias address, "" for none. While it is
// being added or removed, there is none.
func (s *Server) Owner(address string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	for _, one := range s.vms {
		for _, nic := range one.NetworkInterfaces {
			if !s.isUpdating(one) && slices.ContainsFunc(nic.AliasIPRanges, func(r aliasRange) bool { return r.Range == address+"/32" }) {
				return one.Name
			}
		}
	}
	return ""
}

// AddMachine adds a machine of another client that runs.
func (s *Server) AddMachine(zone, name, subnet string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	one := &machine{zone: zone, resource: resource{Name: name, MachineType: "zones/" + zone + "/machineTypes/e2-small"}}
	one.NetworkInterfaces = []*networkInterface{{Subnetwork: "projects/" + Project + "/regions/" + Region + "/subnetworks/" + subnet}}
	op := s.begin(zone, "insert", name, 0)
	s.create(one, op)
	op.done = true
	op.finish(time.Now())
	one.Status = "RUNNING"
}

// SetAliases replaces the alias IP ranges of a machine, which are names of secondary ranges
// by range, or "" for the primary one.
func (s *Server) SetAliases(name string, ranges map[string]string) {
	s.change(name, func(one *machine) {
		nic := one.NetworkInterfaces[0]
		nic.AliasIPRanges = nil
		for text, secondary := range ranges {
			nic.AliasIPRanges = append(nic.AliasIPRanges, aliasRange{text, secondary})
		}
		nic.sign()
	})
}

// Aliases returns the alias IP ranges of a machine, as in SetAliases.
func (s *Server) Aliases(name string) map[string]string {
	ranges := map[string]string{}
	s.change(name, func(one *machine) {
		for _, r := range one.NetworkInterfaces[0].AliasIPRanges {
			ranges[r.Range] = r.Secondary
		}
	})
	return ranges
}

// DelayAlias makes the next operation that adds an alias run until a number of responses have
// shown it.
func (s *Server) DelayAlias(reads int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delayed = reads
}

// InterfaceChanges returns how many calls have changed a network interface since the last
// time.
func (s *Server) InterfaceChanges() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	changes := s.changes
	s.changes = 0
	return changes
}

// PauseChange calls do before the next call that changes a network interface has its effect.
func (s *Server) PauseChange(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pause = do
}

func (s *Server) takePause() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	do := s.pause
	s.pause = nil
	if do == nil {
		return func() {}
	}
	return do
}

// Address returns the primary address of a machine.
func (s *Server) Address(name string) (address string) {
	s.change(name, func(one *machine) { address = one.NetworkInterfaces[0].NetworkIP })
	return address
}
