// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// updateKind is the type of the operations that change a network interface.
const updateKind = "updateNetworkInterface"

// aliasRange is an alias IP range of a network interface.
type aliasRange struct {
	Range     string `json:"ipCidrRange"`
	Secondary string `json:"subnetworkRangeName,omitempty"`
}

func (r aliasRange) prefix() (netip.Prefix, error) {
	if address, err := netip.ParseAddr(r.Range); err == nil {
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	return netip.ParsePrefix(r.Range)
}

// sign sets the fingerprint, which is the same for the same content.
func (i *networkInterface) sign() {
	content, _ := json.Marshal([]any{i.Name, i.AliasIPRanges}) // of strings
	sum := sha256.Sum256(content)
	i.Fingerprint = base64.StdEncoding.EncodeToString(sum[:8])
}

// interfaceUpdate is the body of a call. Other members are not supported.
type interfaceUpdate struct {
	Fingerprint   string        `json:"fingerprint"`
	AliasIPRanges *[]aliasRange `json:"aliasIpRanges"`
}

// updateNetworkInterface begins to replace the alias IP ranges of a network interface. Reads
// show the new ranges at once. If the operation fails, they show the old ranges again. A
// removed range can be added elsewhere when the operation has finished
// (https://cloud.google.com/compute/docs/reference/rest/v1/instances/updateNetworkInterface,
// https://cloud.google.com/vpc/docs/configure-alias-ip-ranges).
func (s *Server) updateNetworkInterface(r *request) (any, error) {
	if op, err := s.repeated(r); op != nil || err != nil {
		return op.resource(), err
	}
	zone, name := r.variables["zone"], r.variables["instance"]
	vm := s.visible(zone, name)
	if vm == nil {
		return nil, notFound(path(zone, "instances", name))
	}
	index := slices.IndexFunc(vm.NetworkInterfaces, func(i *networkInterface) bool { return i.Name == r.query("networkInterface") })
	if index < 0 {
		return nil, invalid("Invalid value for field 'networkInterface': '%s'. The specified network interface does not exist.", r.query("networkInterface"))
	}
	nic := vm.NetworkInterfaces[index]
	var body interfaceUpdate
	if err := unmarshalStrict(r.body, &body); err != nil {
		return nil, invalid("%v", err)
	}
	switch {
	case body.Fingerprint == "":
		return nil, &failure{400, "required", "Required field 'resource.fingerprint' not specified"}
	case body.Fingerprint != nic.Fingerprint:
		return nil, &failure{412, "conditionNotMet", "Supplied fingerprint does not match current metadata fingerprint."}
	case s.isUpdating(vm):
		return nil, &failure{400, "resourceNotReady", fmt.Sprintf("The resource '%s' is not ready", path(zone, "instances", name))}
	case body.AliasIPRanges == nil:
		return nil, invalid("Invalid value for field 'resource': nothing is changed")
	}
	wanted, err := vm.subnet.normalize(s.selectAddresses(vm, *body.AliasIPRanges))
	if err != nil {
		return nil, err
	}
	before := nic.AliasIPRanges
	added := slices.DeleteFunc(slices.Clone(wanted), func(r aliasRange) bool { return slices.Contains(before, r) })
	used := s.inUse(vm, added)
	nic.AliasIPRanges = wanted
	nic.sign()
	s.changes++
	op := s.begin(zone, updateKind, name, s.OperationTime)
	op.target = vm.ID
	if len(added) > 0 {
		op.reads, s.delayed = s.delayed, 0
	}
	if used == "" {
		op.adds = added
	}
	op.releases = slices.DeleteFunc(slices.Clone(before), func(r aliasRange) bool { return slices.Contains(wanted, r) })
	op.finish = func(time.Time) {
		op.releases = nil
		if used != "" {
			op.fail("IP_IN_USE_BY_ANOTHER_RESOURCE", fmt.Sprintf("IP '%s' is already being used by another resource.", used))
			nic.AliasIPRanges = before
			nic.sign()
		}
	}
	s.remember(r, op)
	return op.resource(), nil
}

func unmarshalStrict(data []byte, out any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	return decoder.Decode(out)
}

// isUpdating reports whether a network interface of a machine is being changed.
func (s *Server) isUpdating(vm *machine) bool {
	return slices.ContainsFunc(s.operations, func(op *operation) bool { return !op.done && op.kind == updateKind && op.target == vm.ID })
}

// normalize returns ranges in the form in which responses have them.
func (n *subnet) normalize(ranges []aliasRange) ([]aliasRange, error) {
	var all []aliasRange
	for _, alias := range ranges {
		from := n.cidr
		if alias.Secondary != "" {
			from = n.secondary[alias.Secondary]
		}
		within, err := netip.ParsePrefix(from)
		prefix, parseErr := alias.prefix()
		if err != nil || parseErr != nil || !within.Contains(prefix.Addr()) || prefix.Bits() < within.Bits() {
			return nil, invalid("Invalid value for field 'resource.aliasIpRanges': '%s' is not of the range '%s'", alias.Range, from)
		}
		all = append(all, aliasRange{prefix.String(), alias.Secondary})
	}
	return all, nil
}

// inUse returns the first of some ranges that is used already, or is until an operation has
// finished.
func (s *Server) inUse(own *machine, ranges []aliasRange) string {
	var used []aliasRange
	for _, vm := range s.vms {
		for _, nic := range vm.NetworkInterfaces {
			used = append(used, aliasRange{Range: nic.NetworkIP})
			// An alias that is refused is not used.
			if vm != own && !s.isUpdating(vm) {
				used = append(used, nic.AliasIPRanges...)
			}
		}
	}
	for _, op := range s.operations {
		used = append(used, op.releases...)
		if !op.done {
			used = append(used, op.adds...)
		}
	}
	for _, alias := range ranges {
		prefix, _ := alias.prefix()
		for _, other := range used {
			if of, err := other.prefix(); err == nil && of.Overlaps(prefix) {
				return alias.Range
			}
		}
	}
	return ""
}

// Owner returns the machine at which others reach an alias address, or "". While the address
// is being added or removed, no machine is reached.
func (s *Server) Owner(address string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	for _, vm := range s.vms {
		for _, nic := range vm.NetworkInterfaces {
			if !s.isUpdating(vm) && slices.ContainsFunc(nic.AliasIPRanges, func(r aliasRange) bool { return r.Range == address+"/32" }) {
				return vm.Name
			}
		}
	}
	return ""
}

// AddMachine adds a running machine of another client.
func (s *Server) AddMachine(zone, name, subnet string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	vm := &machine{zone: zone, resource: resource{Name: name, MachineType: "zones/" + zone + "/machineTypes/e2-small"}}
	vm.NetworkInterfaces = []*networkInterface{{Subnetwork: "projects/" + Project + "/regions/" + Region + "/subnetworks/" + subnet}}
	op := s.begin(zone, "insert", name, 0)
	s.create(vm, op)
	op.done = true
	op.finish(time.Now())
	vm.Status = "RUNNING"
}

// SetAliases replaces the alias IP ranges of a machine, which are names of secondary ranges
// by range, or "" for the primary one.
func (s *Server) SetAliases(name string, ranges map[string]string) {
	s.change(name, func(vm *machine) {
		nic := vm.NetworkInterfaces[0]
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
	s.change(name, func(vm *machine) {
		for _, r := range vm.NetworkInterfaces[0].AliasIPRanges {
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
	s.change(name, func(vm *machine) { address = vm.NetworkInterfaces[0].NetworkIP })
	return address
}
