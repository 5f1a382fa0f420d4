// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcetest

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Machines returns the names of the machines that exist and were created, without those whose
// operation has not finished.
func (s *Server) Machines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	var names []string
	for _, one := range s.vms {
		if one.Status != "PROVISIONING" {
			names = append(names, one.Name)
		}
	}
	slices.Sort(names)
	return names
}

// All returns the names of all machines, with those that are being created.
func (s *Server) All() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	var names []string
	for _, one := range s.vms {
		names = append(names, one.Name)
	}
	slices.Sort(names)
	return names
}

// Made returns the names of all machines that were ever created, in that order, and Deleted
// of those that were deleted.
func (s *Server) Made() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	return slices.Clone(s.made)
}

// Deleted returns the names of the machines that were deleted.
func (s *Server) Deleted() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	return slices.Clone(s.deleted)
}

// Disks returns the disks that exist.
func (s *Server) Disks() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	return slices.Sorted(maps.Keys(s.disks))
}

// Machine is what a machine was created with.
type Machine struct {
	Labels                map[string]string
	Description, Userdata string
	Type, Status          string
	Tags                  []string
	Model                 string
}

// Machine returns a machine in any zone, and false if it does not exist.
func (s *Server) Machine(name string) (Machine, bool) {
	one := s.find(name)
	if one == nil {
		return Machine{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	m := Machine{Labels: maps.Clone(one.Labels), Description: one.Description, Type: one.MachineType, Status: one.Status}
	if one.Metadata != nil {
		for _, item := range one.Metadata.Items {
			if item.Key == "user-data" {
				m.Userdata = item.Value
			}
		}
	}
	if one.Tags != nil {
		m.Tags = one.Tags.Items
	}
	if one.Scheduling != nil {
		m.Model = one.Scheduling.ProvisioningModel
	}
	return m, true
}

func (s *Server) find(name string) *machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.vms {
		if one.Name == name {
			return one
		}
	}
	return nil
}

// change changes a machine.
func (s *Server) change(name string, change func(*machine)) {
	one := s.find(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if one != nil {
		s.settle(time.Now())
		change(one)
	}
}

// Remove deletes a machine at once.
func (s *Server) Remove(name string) { s.change(name, s.remove) }

// SetStatus sets the status of a machine.
func (s *Server) SetStatus(name, status string) {
	s.change(name, func(one *machine) { one.Status = status })
}

// SetLabels replaces the labels of a machine.
func (s *Server) SetLabels(name string, labels map[string]string) {
	s.change(name, func(one *machine) { one.Labels = labels })
}

// SetDescription replaces the description of a machine.
func (s *Server) SetDescription(name, description string) {
	s.change(name, func(one *machine) { one.Description = description })
}

// Copy creates a machine like another one, as the console does.
func (s *Server) Copy(name, copied string) {
	s.change(name, func(one *machine) {
		another := *one
		another.Name, another.Disks = copied, nil
		s.vms[key(one.zone, copied)] = &another
	})
}

// Disown gives a machine to another owner: it has no labels and no description of ours.
func (s *Server) Disown(name string) {
	s.change(name, func(one *machine) { one.Labels, one.Description = nil, "" })
}

// Preempt takes the capacity of a spot machine away.
func (s *Server) Preempt(name string) {
	s.change(name, func(one *machine) {
		op := s.begin(one.zone, "compute.instances.preempted", one.Name, 0)
		op.target, op.done = one.ID, true
		if strings.EqualFold(one.Scheduling.InstanceTerminationAction, "DELETE") {
			s.remove(one)
			return
		}
		one.Status = "TERMINATED"
	})
}

// SetExhausted makes the zones have no machine of a type in a market, STANDARD or SPOT, or
// some again.
func (s *Server) SetExhausted(machineType, model string, exhausted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exhausted[machineType+" "+model] = exhausted
}

// Reject makes the operations that create machines of a type fail with a code, or succeed
// again if that is empty.
func (s *Server) Reject(machineType, code string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rejecting[machineType] = code
}

// SetQuota limits the machines.
func (s *Server) SetQuota(quota int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quota = quota
}

// SetOperationTime sets how long operations take that begin from now on.
func (s *Server) SetOperationTime(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.OperationTime = d
}

// SetSubnet adds a subnetwork in which other clients have a number of addresses.
func (s *Server) SetSubnet(name, cidr string, others int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subnets[name] = &subnet{cidr: cidr, size: 1 << (32 - netip.MustParsePrefix(cidr).Bits()), others: others}
}

// Calls returns how many calls there were since the last time, by method.
func (s *Server) Calls() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = map[string]int{}
	return calls
}

// Methods returns the methods that were ever called, sorted.
func (s *Server) Methods() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.ever))
}
