// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/provider"
)

// readLeaderNetwork returns nil when the shard has none.
func readLeaderNetwork(shard *jsonc.Object) *provider.Network {
	if !shard.Has("leader_network") {
		return nil
	}
	o := shard.Object("leader_network")
	defer o.Finish()
	network := &provider.Network{InterfaceID: o.String("interface_id")}
	text := o.String("ip")
	ip, err := netip.ParseAddr(text)
	switch {
	case text == "":
		o.Report(field.Required(o.Child("ip"), "must not be empty"))
	case err != nil || ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast():
		o.Report(field.Invalid(o.Child("ip"), text, `must be the IP address of one machine, such as "10.0.0.10"`))
	default:
		network.IP = ip.Unmap()
	}
	return network
}

// leaderListeners are the listeners that others reach at the address of the leader.
func (a Addresses) leaderListeners(path *field.Path) []listener {
	return []listener{
		{path: path.Child("registration_addr"), address: a.RegistrationAddr},
		{path: path.Child("operator_addr"), address: a.OperatorAddr},
		{path: path.Child("agent_addr"), address: a.AgentAddr, optional: true},
	}
}

// validateLeaderNetwork requires that the listeners that others reach at the address can
// be reached there. An unknown provider is reported elsewhere.
func (s *Shard) validateLeaderNetwork(path *field.Path) field.ErrorList {
	if s.LeaderNetwork == nil || s.Infra.Options == nil {
		return nil
	}
	path, bind := path.Child("leader_network"), path.Child("bind")
	options, ok := s.Infra.Options.(provider.LeaderNetworkOptions)
	if !ok {
		return field.ErrorList{field.Invalid(path, s.LeaderNetwork.IP.String(), fmt.Sprintf("must not be set: provider %q has no leader network", s.Infra.Provider))}
	}
	if !s.LeaderNetwork.IP.IsValid() {
		return nil // reported when it was read
	}
	errs := options.ValidateLeaderNetwork(path, *s.LeaderNetwork)
	for _, l := range s.Bind.leaderListeners(bind) {
		// An invalid address has its own error.
		if host, _, err := validation.SplitAddress(l.address); err == nil && !isWildcard(host) {
			errs = append(errs, field.Invalid(l.path, l.address, "must have the host 0.0.0.0 or :: with shard.leader_network, whose address the machine has only while it leads"))
		}
	}
	return errs
}

// immutableNetworkFields returns the fields of the network, also if there is none: one that
// is added needs a restart.
func immutableNetworkFields(path *field.Path, network *provider.Network) []provider.ImmutableField {
	ip, interfaceID := "", ""
	if network != nil {
		ip, interfaceID = network.IP.String(), network.InterfaceID
	}
	return []provider.ImmutableField{
		{Path: path.Child("ip"), Value: ip},
		{Path: path.Child("interface_id"), Value: interfaceID},
	}
}
