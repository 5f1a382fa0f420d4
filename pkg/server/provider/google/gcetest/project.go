// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcetest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Machines returns the names of the existing machines, without machines that are being
// created.
func (s *Server) Machines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	var names []string
	for _, vm := range s.vms {
		if vm.Status != "PROVISIONING" {
			names = append(names, vm.Name)
		}
	}
	slices.Sort(names)
	return names
}

// All returns the names of all machines, including machines that are being created.
func (s *Server) All() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	var names []string
	for _, vm := range s.vms {
		names = append(names, vm.Name)
	}
	slices.Sort(names)
	return names
}

// Made returns the names of all machines that were ever created, in that order, and Deleted
// the names of the deleted machines.
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

// Machine has the properties with which a machine was created.
type Machine struct {
	Labels                map[string]string
	Description, Userdata string
	Type, Status          string
	Tags                  []string
	Model                 string
}

// Machine returns a machine in any zone, and false if it does not exist.
func (s *Server) Machine(name string) (Machine, bool) {
	vm := s.find(name)
	if vm == nil {
		return Machine{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	m := Machine{Labels: maps.Clone(vm.Labels), Description: vm.Description, Type: vm.MachineType, Status: vm.Status}
	if vm.Metadata != nil {
		for _, item := range vm.Metadata.Items {
			if item.Key == "user-data" {
				m.Userdata = item.Value
			}
		}
	}
	if vm.Tags != nil {
		m.Tags = vm.Tags.Items
	}
	if vm.Scheduling != nil {
		m.Model = vm.Scheduling.ProvisioningModel
	}
	return m, true
}

func (s *Server) find(name string) *machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, vm := range s.vms {
		if vm.Name == name {
			return vm
		}
	}
	return nil
}

// change changes a machine.
func (s *Server) change(name string, change func(*machine)) {
	vm := s.find(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if vm != nil {
		s.settle(time.Now())
		change(vm)
	}
}

// Remove deletes a machine at once.
func (s *Server) Remove(name string) { s.change(name, s.remove) }

// SetStatus sets the status of a machine.
func (s *Server) SetStatus(name, status string) {
	s.change(name, func(vm *machine) { vm.Status = status })
}

// SetLabels replaces the labels of a machine.
func (s *Server) SetLabels(name string, labels map[string]string) {
	s.change(name, func(vm *machine) { vm.Labels = labels })
}

// SetDescription replaces the description of a machine.
func (s *Server) SetDescription(name, description string) {
	s.change(name, func(vm *machine) { vm.Description = description })
}

// Copy creates a machine with the same properties as another, like the console.
func (s *Server) Copy(name, copied string) {
	s.change(name, func(vm *machine) {
		another := *vm
		another.Name, another.Disks = copied, nil
		s.vms[key(vm.zone, copied)] = &another
	})
}

// Disown removes the labels and the description that identify a machine.
func (s *Server) Disown(name string) {
	s.change(name, func(vm *machine) { vm.Labels, vm.Description = nil, "" })
}

// Preempt preempts a spot machine.
func (s *Server) Preempt(name string) { s.change(name, s.preempt) }

// preempt preempts a spot machine. mu must be locked.
func (s *Server) preempt(vm *machine) {
	op := s.begin(vm.zone, "compute.instances.preempted", vm.Name, 0)
	op.target, op.done = vm.ID, true
	if strings.EqualFold(vm.Scheduling.InstanceTerminationAction, "DELETE") {
		s.remove(vm)
		return
	}
	vm.Status = "TERMINATED"
}

// SetExhausted sets whether the zones lack capacity for a type in a market, STANDARD or SPOT.
func (s *Server) SetExhausted(machineType, model string, exhausted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exhausted[machineType+" "+model] = exhausted
}

// SetOffered sets whether the zones have a machine type.
func (s *Server) SetOffered(machineType string, offered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.types[machineType] = offered
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

// reserved is the number of addresses of a range that no machine gets
// (https://cloud.google.com/vpc/docs/subnets#unusable-ip-addresses-in-every-subnet).
const reserved = 4

// subnet is a subnetwork.
type subnet struct {
	cidr string
	size int
	// secondary are its secondary ranges by name.
	secondary map[string]string
	// others is the number of addresses of other clients.
	others int
	// ipv6Only is true if the subnetwork has no IPv4 addresses.
	ipv6Only bool
	// exhausted is true if the subnetwork has no free addresses, but reports some.
	exhausted bool
}

// AddIPv6Subnet adds a subnetwork that has IPv6 addresses only
// (https://cloud.google.com/vpc/docs/subnets#subnet-types).
func (s *Server) AddIPv6Subnet(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subnets[name] = &subnet{ipv6Only: true}
}

// connect gives a machine an address that no other machine has.
func (n *subnet) connect(nic *networkInterface, id uint64) {
	if n.ipv6Only {
		nic.IPv6Address = fmt.Sprintf("2600:1900::%x", id)
		return
	}
	nic.NetworkIP = n.address(id)
}

// address returns an address that no other machine has.
func (n *subnet) address(id uint64) string {
	base := netip.MustParsePrefix(n.cidr).Addr().As4()
	return netip.AddrFrom4([4]byte{base[0], base[1], byte(id >> 8), byte(id)}).String()
}

// subnetOf returns the subnetwork of a partial address, or nil.
func (s *Server) subnetOf(address string) *subnet {
	name, found := strings.CutPrefix(address, "projects/"+Project+"/regions/"+Region+"/subnetworks/")
	if !found {
		return nil
	}
	return s.subnets[name]
}

// free returns how many addresses a subnetwork has left. mu must be locked.
func (s *Server) free(n *subnet) int {
	free := n.size - reserved - n.others
	for _, vm := range s.vms {
		if vm.subnet == n {
			free--
		}
	}
	return free
}

func (s *Server) getSubnetwork(r *request) (any, error) {
	name := r.variables["subnetwork"]
	n := s.subnets[name]
	if n == nil || r.variables["region"] != Region {
		return nil, notFound(fmt.Sprintf("projects/%s/regions/%s/subnetworks/%s", Project, r.variables["region"], name))
	}
	if n.ipv6Only {
		return map[string]any{"kind": "compute#subnetwork", "name": name, "stackType": ipv6Only}, nil
	}
	all := map[string]any{"kind": "compute#subnetwork", "name": name, "ipCidrRange": n.cidr, "region": root + "projects/" + Project + "/regions/" + Region}
	if r.query("views") == "WITH_UTILIZATION" && !s.NoUtilization {
		free := s.free(n)
		all["utilizationDetails"] = map[string]any{"ipv4Utilizations": []any{
			map[string]any{"rangeName": "pods", "totalAllocatedIp": "0", "totalFreeIp": "1"},
			map[string]any{"totalAllocatedIp": strconv.Itoa(n.size - reserved - free), "totalFreeIp": strconv.Itoa(free)},
		}}
	}
	return all, nil
}
