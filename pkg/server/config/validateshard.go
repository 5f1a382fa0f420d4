// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

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
	errs = append(errs, s.Expiry.validate(path.Child("expiry"))...)
	errs = append(errs, s.GarbageCollection.validate(path.Child("garbage_collection"))...)
	errs = append(errs, validation.Positive(path.Child("health_check_interval"), s.HealthCheckInterval)...)
	// A call without a timeout could block for ever.
	return append(errs, validation.Positive(path.Child("request_timeout"), s.RequestTimeout)...)
}

func validateMaxSize(path *field.Path, size int32) field.ErrorList {
	if size < 1 || size > MaxSize {
		return field.ErrorList{field.Invalid(path, size, fmt.Sprintf("must be from 1 to %d", MaxSize))}
	}
	return nil
}

// validateSize checks a configured size.
func validateSize(path *field.Path, size int32) field.ErrorList {
	if size < 0 {
		return field.ErrorList{field.Invalid(path, size, "must not be negative")}
	}
	if size > MaxSize {
		return field.ErrorList{field.Invalid(path, size, fmt.Sprintf("must be at most %d", MaxSize))}
	}
	return nil
}

func (s *Shard) validateInfra(path *field.Path, providers provider.Registry) field.ErrorList {
	errs := validation.LabelValue(path.Child("region"), s.Infra.Region)
	errs = append(errs, validation.LabelValue(path.Child("zone"), s.Infra.Zone)...)
	if s.Infra.Options == nil {
		return append(errs, field.NotSupported(path.Child("provider"), s.Infra.Provider, slices.Sorted(maps.Keys(providers))))
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

// validateBind requires all addresses, and no address of two listeners. The address for
// agents may be missing if no instance has one.
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
	// Port 0 is any free port, so two of them differ.
	if errA != nil || errB != nil || portA != portB || portA == 0 {
		return false
	}
	return hostA == hostB || isWildcard(hostA) || isWildcard(hostB)
}

// validateAdvertise accepts missing addresses, which are those of the listeners.
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

// validateSubnetPools requires at least one pool, at least one subnet in each, and
// no subnet in two pools.
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
