// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/storage"
)

func (s *Shard) validate(path *field.Path, providers provider.Registry) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, validation.Identifier(path.Child("id"), s.ID)...)
	if storage.ShardLeaderKey(s.ID) == storage.ClusterLeaderKey {
		errs = append(errs, field.Invalid(path.Child("id"), s.ID, "is the name of the lock of all shards"))
	}
	errs = append(errs, s.validateInfra(path.Child("infra"), providers)...)
	errs = append(errs, s.Election.validate(path.Child("leader_election"))...)
	errs = append(errs, s.validateBind(path)...)
	errs = append(errs, s.validateAdvertise(path)...)
	errs = append(errs, s.validateLeaderNetwork(path)...)
	errs = append(errs, s.validateSubnetPools(path.Child("subnet_pools"))...)
	for i, pool := range s.DynamicSubnetPools {
		if err := s.CheckSubnetPool(path.Child("dynamic_subnet_pools").Index(i), pool); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, validateMaxSize(path.Child("max_size"), s.MaxSize)...)
	errs = append(errs, s.validateOnDemand(path)...)
	errs = append(errs, validateMaxCalls(path.Child("max_calls_per_second"), s.MaxCallsPerSecond)...)
	errs = append(errs, s.Expiry.validate(path.Child("expiry"))...)
	errs = append(errs, s.GarbageCollection.validate(path.Child("garbage_collection"))...)
	errs = append(errs, validation.Positive(path.Child("health_check_interval"), s.HealthCheckInterval)...)
	// A call without a timeout could block for ever.
	return append(errs, validation.Positive(path.Child("request_timeout"), s.RequestTimeout)...)
}

// validateOnDemand checks the limits of on-demand instances. Instances are counted by their
// records, so deleted instances must be remembered for an hour.
func (s *Shard) validateOnDemand(path *field.Path) field.ErrorList {
	errs := validateMaxOnDemand(path.Child("max_on_demand"), s.MaxOnDemand)
	errs = append(errs, validateMaxOnDemand(path.Child("max_on_demand_per_hour"), s.MaxOnDemandPerHour)...)
	if len(errs) > 0 {
		return errs
	}
	if retention := s.GarbageCollection.DeletedRecordRetention; s.MaxOnDemandPerHour != nil && retention < OnDemandPeriod {
		errs = append(errs, field.Invalid(path.Child("garbage_collection", "deleted_record_retention"), retention.String(),
			fmt.Sprintf("must be at least %s with max_on_demand_per_hour", OnDemandPeriod)))
	}
	return errs
}

func (s *Shard) validateInfra(path *field.Path, providers provider.Registry) field.ErrorList {
	errs := validation.LabelValue(path.Child("region"), s.Infra.Region)
	errs = append(errs, validation.LabelValue(path.Child("zone"), s.Infra.Zone)...)
	if s.Infra.Options == nil {
		return append(errs, field.NotSupported(path.Child("provider"), s.Infra.Provider, slices.Sorted(maps.Keys(providers))))
	}
	if place, ok := s.Infra.Options.(provider.PlaceOptions); ok && len(errs) == 0 {
		errs = append(errs, place.ValidateZone(path.Child("zone"), s.Infra.Region, s.Infra.Zone)...)
	}
	subnets := sets.New[string]()
	for _, pool := range s.SubnetPools {
		subnets.Insert(pool...)
	}
	return append(errs, s.Infra.Options.Validate(path.Child("options"), subnets)...)
}

// listener is one of the addresses, with its path in the configuration.
type listener struct {
	path    *field.Path
	address string
	// optional is true if the server need not listen there.
	optional bool
}

func (a Addresses) listeners(path *field.Path) []listener {
	return []listener{
		{path: path.Child("health_addr"), address: a.HealthAddr},
		{path: path.Child("election_addr"), address: a.ElectionAddr},
		{path: path.Child("registration_addr"), address: a.RegistrationAddr},
		{path: path.Child("operator_addr"), address: a.OperatorAddr},
		{path: path.Child("agent_addr"), address: a.AgentAddr, optional: true},
	}
}

// validateBind requires all addresses, and a different address for each listener. The address
// for agents may be missing if no instance has an agent.
func (s *Shard) validateBind(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	listeners := s.Bind.listeners(path.Child("bind"))
	for i, l := range listeners {
		if l.address == "" && l.optional && !provider.RunsAgent(s.Infra.Options) {
			continue
		}
		errs = append(errs, validation.Address(l.path, l.address)...)
		for _, other := range listeners[:i] {
			if collide(l.address, other.address) {
				errs = append(errs, field.Invalid(l.path, l.address, "must differ from "+other.path.String()))
				break
			}
		}
	}
	return errs
}

// collide reports whether a machine cannot listen at both addresses.
func collide(a, b string) bool {
	hostA, portA, errA := validation.SplitAddress(a)
	hostB, portB, errB := validation.SplitAddress(b)
	// Port 0 means any free port, so two listeners with port 0 differ.
	if errA != nil || errB != nil || portA != portB || portA == 0 {
		return false
	}
	return hostA == hostB || isWildcard(hostA) || isWildcard(hostB)
}

// validateAdvertise accepts missing addresses, which default to the listeners' addresses.
func (s *Shard) validateAdvertise(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, l := range s.Advertise.listeners(path.Child("advertise")) {
		if l.address == "" {
			continue
		}
		errs = append(errs, validation.Address(l.path, l.address)...)
		if _, port, err := validation.SplitAddress(l.address); err == nil && port == 0 {
			errs = append(errs, field.Invalid(l.path, l.address, "must not have port 0: no client can connect to it"))
		}
	}
	return errs
}

// validateSubnetPools requires at least one pool, at least one subnet in each, no subnet in two
// pools, and what the provider requires of a subnet.
func (s *Shard) validateSubnetPools(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.SubnetPools) == 0 {
		errs = append(errs, field.Required(path, "needs at least one subnet pool"))
	}
	poolOf := map[string]string{}
	for _, pool := range slices.Sorted(maps.Keys(s.SubnetPools)) {
		errs = append(errs, validation.Identifier(path.Child(pool), pool)...)
		subnets := s.SubnetPools[pool]
		if len(subnets) == 0 {
			errs = append(errs, field.Required(path.Child(pool), "needs at least one subnet"))
		}
		for i, subnet := range subnets {
			errs = append(errs, validation.LabelValue(path.Child(pool).Index(i), subnet)...)
			if other, taken := poolOf[subnet]; taken && subnet != "" {
				errs = append(errs, field.Invalid(path.Child(pool).Index(i), subnet, fmt.Sprintf("is in pool %q already", other)))
			}
			poolOf[subnet] = pool
			if rules, ok := s.Infra.Options.(provider.SubnetOptions); ok && subnet != "" {
				errs = append(errs, rules.ValidateSubnet(path.Child(pool).Index(i), subnet)...)
			}
		}
	}
	return errs
}

// validate requires that an instance is eligible for replacement before it is
// forced. Zero means never.
func (e Expiry) validate(path *field.Path) field.ErrorList {
	if e.EligibleAge > 0 && e.ForcedAge > 0 && e.EligibleAge >= e.ForcedAge {
		return field.ErrorList{field.Invalid(path.Child("eligible_age"), e.EligibleAge.String(), fmt.Sprintf("must be less than forced_age %s", e.ForcedAge))}
	}
	return nil
}

// validate requires that instances are compared before the registration timeout,
// unless either is zero, which turns it off.
func (g GarbageCollection) validate(path *field.Path) field.ErrorList {
	if g.Interval > 0 && g.RegistrationTimeout > 0 && g.RegistrationTimeout <= g.Interval {
		return field.ErrorList{field.Invalid(path.Child("registration_timeout"), g.RegistrationTimeout.String(), fmt.Sprintf("must exceed interval %s", g.Interval))}
	}
	return nil
}

// Advertised returns the addresses at which others reach the server: Advertise, or else the
// bound addresses, whose ports are never 0. An empty or wildcard host is replaced by machine,
// the address of the machine's primary interface, or by the address of the leader network
// where operators, agents and registering clients reach the leader.
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

// readLeaderNetwork returns nil if the shard has no leader network.
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

// validateLeaderNetwork requires that others can reach the leader's listeners at the address
// of the leader. An unknown provider is reported elsewhere.
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

// immutableNetworkFields returns the fields of the network, also for nil: adding a network
// needs a restart.
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
