// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/storage"
)

func (s *Shard) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, validateIdentifier(path.Child("id"), s.ID)...)
	if storage.ShardLeaderKey(s.ID) == storage.ClusterLeaderKey {
		errs = append(errs, field.Invalid(path.Child("id"), s.ID, "is the name of the lock of all shards"))
	}
	errs = append(errs, s.validateInfra(path.Child("infra"))...)
	errs = append(errs, s.Election.validate(path.Child("leader_election"))...)
	errs = append(errs, s.validateBind(path)...)
	errs = append(errs, s.validateAdvertise(path)...)
	errs = append(errs, s.validateSubnetPools(path.Child("subnet_pools"))...)
	for i, pool := range s.DynamicSubnetPools {
		if err := s.CheckSubnetPool(path.Child("dynamic_subnet_pools").Index(i), pool); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, s.Expiry.validate(path.Child("expiry"))...)
	errs = append(errs, s.GarbageCollection.validate(path.Child("garbage_collection"))...)
	// A call without a bound could hang for ever, and what waits for it with it.
	return append(errs, validatePositive(path.Child("request_timeout"), s.RequestTimeout)...)
}

// listener is one of the addresses, with its place in the configuration.
type listener struct {
	path    *field.Path
	address string
}

func (a Addresses) listeners(path *field.Path) []listener {
	return []listener{
		{path.Child("health_addr"), a.HealthAddr},
		{path.Child("election_addr"), a.ElectionAddr},
		{path.Child("registration_addr"), a.RegistrationAddr},
		{path.Child("operator_addr"), a.OperatorAddr},
	}
}

// validateBind: all addresses are mandatory, and no two listeners can have the
// same one (server document).
func (s *Shard) validateBind(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	listeners := s.Bind.listeners(path.Child("bind"))
	for i, l := range listeners {
		errs = append(errs, validateAddress(l.path, l.address)...)
		for _, other := range listeners[:i] {
			if collide(l.address, other.address) {
				errs = append(errs, field.Invalid(l.path, l.address, "must differ from "+other.path.String()))
				break
			}
		}
	}
	return errs
}

// collide tells whether a machine cannot listen at both addresses.
func collide(a, b string) bool {
	hostA, portA, errA := splitAddress(a)
	hostB, portB, errB := splitAddress(b)
	// Port 0 is any free port, so two of them differ.
	if errA != nil || errB != nil || portA != portB || portA == 0 {
		return false
	}
	return hostA == hostB || isWildcard(hostA) || isWildcard(hostB)
}

// validateAdvertise: what is absent is taken from the listener.
func (s *Shard) validateAdvertise(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, l := range s.Advertise.listeners(path.Child("advertise")) {
		if l.address == "" {
			continue
		}
		errs = append(errs, validateAddress(l.path, l.address)...)
		if _, port, err := splitAddress(l.address); err == nil && port == 0 {
			errs = append(errs, field.Invalid(l.path, l.address, "must not have port 0: nobody can connect to it"))
		}
	}
	return errs
}

// validateSubnetPools: at least one pool, at least one subnet in each, and no
// subnet in two (server document).
func (s *Shard) validateSubnetPools(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.SubnetPools) == 0 {
		errs = append(errs, field.Required(path, "needs at least one subnet pool"))
	}
	poolOf := map[string]string{}
	for _, pool := range slices.Sorted(maps.Keys(s.SubnetPools)) {
		errs = append(errs, validateIdentifier(path.Child(pool), pool)...)
		subnets := s.SubnetPools[pool]
		if len(subnets) == 0 {
			errs = append(errs, field.Required(path.Child(pool), "needs at least one subnet"))
		}
		for i, subnet := range subnets {
			errs = append(errs, validateLabelValue(path.Child(pool).Index(i), subnet)...)
			if other, taken := poolOf[subnet]; taken && subnet != "" {
				errs = append(errs, field.Invalid(path.Child(pool).Index(i), subnet, fmt.Sprintf("is in pool %q already", other)))
			}
			poolOf[subnet] = pool
		}
	}
	return errs
}

// validate: the forced age is for what the eligible age did not bring about.
// Zero, like absent, means never.
func (e Expiry) validate(path *field.Path) field.ErrorList {
	if e.EligibleAge > 0 && e.ForcedAge > 0 && e.EligibleAge >= e.ForcedAge {
		return field.ErrorList{field.Invalid(path.Child("eligible_age"), e.EligibleAge.String(), fmt.Sprintf("must be less than forced_age %s", e.ForcedAge))}
	}
	return nil
}

// validate: each of the two is off when it is zero, and only then does the other
// stand alone.
func (g GarbageCollection) validate(path *field.Path) field.ErrorList {
	if g.Interval > 0 && g.RegistrationTimeout > 0 && g.RegistrationTimeout <= g.Interval {
		return field.ErrorList{field.Invalid(path.Child("registration_timeout"), g.RegistrationTimeout.String(), fmt.Sprintf("must exceed interval %s", g.Interval))}
	}
	return nil
}
