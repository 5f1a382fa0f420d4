// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"net"
	"slices"

	"nstance.dev/operator/pkg/server/config"
)

// withHost returns addresses with another host. Empty ones stay empty. With a leader
// network those at which others reach the leader keep their host: they must accept
// connections to an address that the machine has at times.
func withHost(addresses config.Addresses, host string, leaderNetwork bool) config.Addresses {
	if host == "" {
		return addresses
	}
	replaced := []*string{&addresses.HealthAddr, &addresses.ElectionAddr}
	if !leaderNetwork {
		replaced = append(replaced, &addresses.RegistrationAddr, &addresses.OperatorAddr, &addresses.AgentAddr)
	}
	for _, address := range replaced {
		// The configuration has been validated.
		if _, port, err := net.SplitHostPort(*address); err == nil {
			*address = net.JoinHostPort(host, port)
		}
	}
	return addresses
}

// machineHost returns the first global unicast address of the machine, or the
// loopback address when there is none.
func machineHost() string {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "127.0.0.1"
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.IsGlobalUnicast() {
			return network.IP.String()
		}
	}
	return "127.0.0.1"
}

// isLoopback reports whether a host is the machine itself.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// hosts returns the names that the server's certificate must have: those of all
// addresses, and the loopback ones for tools on the same machine.
func hosts(addresses config.Addresses) []string {
	var hosts []string
	for _, address := range []string{addresses.OperatorAddr, addresses.RegistrationAddr, addresses.ElectionAddr, addresses.AgentAddr} {
		if host, _, err := net.SplitHostPort(address); err == nil {
			hosts = append(hosts, host)
		}
	}
	hosts = append(hosts, "localhost", "127.0.0.1", "::1")
	slices.Sort(hosts)
	return slices.Compact(hosts)
}
