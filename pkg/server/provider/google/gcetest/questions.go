// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcetest

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"
)

// The calls that only questions make, which a check asks.

// toConsole is a line of a script that writes a text to the console.
var toConsole = regexp.MustCompile(`(?m)^echo '([^']*)' >/dev/console`)

// getSerialPortOutput shows what the userdata has written to the console when the machine runs.
func (s *Server) getSerialPortOutput(r *request) (any, error) {
	vm := s.visible(r.variables["zone"], r.variables["instance"])
	if vm == nil {
		return nil, notFound(path(r.variables["zone"], "instances", r.variables["instance"]))
	}
	text := "Booting the kernel.\r\n"
	if vm.Status == "RUNNING" && vm.Metadata != nil && !s.NoCloudInit {
		for _, item := range vm.Metadata.Items {
			if item.Key != "user-data" {
				continue
			}
			for _, match := range toConsole.FindAllStringSubmatch(item.Value, -1) {
				text += match[1] + "\r\n"
			}
		}
	}
	return map[string]any{"kind": "compute#serialPortOutput", "contents": text, "start": "0", "next": fmt.Sprint(len(text))}, nil
}

// simulateMaintenanceEvent preempts a spot machine
// (https://cloud.google.com/compute/docs/instances/simulating-host-maintenance).
func (s *Server) simulateMaintenanceEvent(r *request) (any, error) {
	zone, name := r.variables["zone"], r.variables["instance"]
	vm := s.visible(zone, name)
	if vm == nil {
		return nil, notFound(path(zone, "instances", name))
	}
	if vm.Scheduling == nil || vm.Scheduling.ProvisioningModel != "SPOT" {
		return nil, invalid("this server simulates maintenance of spot machines only")
	}
	op := s.begin(zone, "simulateMaintenanceEvent", name, s.OperationTime)
	op.target = vm.ID
	op.finish = func(time.Time) { s.preempt(vm) }
	return op.resource(), nil
}

// selectAddresses returns alias ranges with an unused address of the primary range in place of a
// range without address, such as "/32". mu must be locked.
func (s *Server) selectAddresses(vm *machine, ranges []aliasRange) []aliasRange {
	selected := slices.Clone(ranges)
	for n, alias := range selected {
		if alias.Range != "/32" {
			continue
		}
		base := netip.MustParsePrefix(vm.subnet.cidr).Addr().As4()
		for last := byte(200); last < 250; last++ {
			candidate := aliasRange{Range: netip.AddrFrom4([4]byte{base[0], base[1], 250, last}).String() + "/32"}
			if s.inUse(vm, []aliasRange{candidate}) == "" && !slices.Contains(selected, candidate) {
				selected[n] = candidate
				break
			}
		}
	}
	return selected
}
