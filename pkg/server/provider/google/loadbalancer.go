// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
)

// balancerSettings are the fields of an entry of load_balancers.
type balancerSettings struct {
	// groups are the names of zonal network endpoint groups.
	groups []string
	// port is that of the endpoints, nil for that of each group.
	port *int32
}

var _ provider.LoadBalancerOptions = (*Options)(nil)

// ReadLoadBalancer reads an entry of load_balancers.
func (*Options) ReadLoadBalancer(o *jsonc.Object) provider.LoadBalancerSettings {
	return balancerSettings{groups: o.Strings("network_endpoint_groups"), port: o.Int32("port")}
}

// Parts returns the network endpoint groups, each with the port: a target is one of a group
// and a port.
func (s balancerSettings) Parts() map[string]provider.LoadBalancerSettings {
	parts := map[string]provider.LoadBalancerSettings{}
	for _, group := range s.groups {
		name := group
		if s.port != nil {
			name += fmt.Sprintf(" port %d", *s.port)
		}
		parts[name] = balancerSettings{groups: []string{group}, port: s.port}
	}
	return parts
}

// Validate requires network endpoint groups.
func (s balancerSettings) Validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	list := path.Child("network_endpoint_groups")
	if len(s.groups) == 0 {
		errs = append(errs, field.Required(list, "must have the name of a network endpoint group in the zone of the shard"))
	}
	for n, name := range s.groups {
		switch {
		case !names.MatchString(name):
			errs = append(errs, field.Invalid(list.Index(n), name, nameRule))
		case slices.Contains(s.groups[:n], name):
			errs = append(errs, field.Duplicate(list.Index(n), name))
		}
	}
	if s.port != nil && (*s.port < 1 || *s.port > 65535) {
		errs = append(errs, field.Invalid(path.Child("port"), *s.port, "must be between 1 and 65535"))
	}
	return errs
}
