// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import "net"

// Advertised returns the addresses at which others reach the server: those of
// Advertise, or else those that the listeners are bound to, whose ports are never
// 0. A host that is empty or a wildcard is replaced by machine, the address of the
// machine's primary interface, or by that of the leader network where operators, agents
// and those that register reach the leader.
func (s *Shard) Advertised(bound Addresses, machine string) Addresses {
	leader := machine
	if s.LeaderNetwork != nil {
		leader = s.LeaderNetwork.IP.String()
	}
	reachable := func(advertise, bound, machine string) string {
		address := bound
		if advertise != "" {
			address = advertise
		}
		host, port, err := net.SplitHostPort(address)
		if err != nil || !isWildcard(host) {
			return address
		}
		return net.JoinHostPort(machine, port)
	}
	agents := ""
	if bound.AgentAddr != "" {
		agents = reachable(s.Advertise.AgentAddr, bound.AgentAddr, leader)
	}
	return Addresses{
		HealthAddr:       reachable(s.Advertise.HealthAddr, bound.HealthAddr, machine),
		ElectionAddr:     reachable(s.Advertise.ElectionAddr, bound.ElectionAddr, machine),
		RegistrationAddr: reachable(s.Advertise.RegistrationAddr, bound.RegistrationAddr, leader),
		OperatorAddr:     reachable(s.Advertise.OperatorAddr, bound.OperatorAddr, leader),
		AgentAddr:        agents,
	}
}

// isWildcard reports whether host means all addresses of a machine.
func isWildcard(host string) bool {
	return host == "" || net.ParseIP(host).Equal(net.IPv4zero) || net.ParseIP(host).Equal(net.IPv6zero)
}
