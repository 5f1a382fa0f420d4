// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/instance"
)

// LoadBalancers is implemented by a Provider that makes instances targets of load
// balancers (docs/server.md#load-balancers). The server decides which instances to register
// and when: it compares Targets with the wanted targets and repeats calls until both agree.
//
// The settings of each LoadBalancer that the methods get are one of its Parts.
//
// Register and Deregister have a context of CallContextFunc. An implementation that sends
// several requests for one call runs deadline.Check before each request that changes
// something.
type LoadBalancers interface {
	// Register registers instances. A registered instance is no error. Register returns nil
	// only if all instances are registered; after an error some may be.
	Register(ctx context.Context, balancer LoadBalancer, instances []instance.VM) error
	// Deregister begins to deregister instances. It does not wait until the load balancer
	// has ended their connections. It ignores an instance that is no target, is being
	// deregistered, or does not exist any more.
	Deregister(ctx context.Context, balancer LoadBalancer, instances []instance.VM) error
	// Targets returns all targets, including targets of other clients and targets whose
	// deregistration delay is not over. It never returns an incomplete list.
	Targets(ctx context.Context, balancer LoadBalancer) ([]Target, error)
}

// LoadBalancer is an entry of load_balancers in the configuration, or a part of an entry.
type LoadBalancer struct {
	// Key is the key of the entry in the configuration.
	Key string
	// Settings come from LoadBalancerOptions.
	Settings LoadBalancerSettings
}

// Target is an instance, or something else, to which a load balancer sends requests.
type Target struct {
	// ID is the id of the instance. It is empty if another client registered the target, or
	// if the load balancer does not report the id.
	ID string
	// ProviderID identifies the instance if ID is empty. Both are empty if the target
	// certainly is no instance of this shard.
	ProviderID string
	State      TargetState
}

// TargetState says whether a target gets new requests.
type TargetState int

const (
	// Registered targets get requests if they are healthy.
	Registered TargetState = iota
	// Draining targets get no new requests, and may still have connections.
	Draining
)

// LoadBalancerOptions are implemented by the Options of a Provider that implements
// LoadBalancers. A configuration with load balancers is rejected for any other provider.
type LoadBalancerOptions interface {
	// ReadLoadBalancer reads the provider's own fields of an entry of load_balancers. It
	// reports fields of the wrong type; the caller reports fields that it does not read.
	ReadLoadBalancer(o *jsonc.Object) LoadBalancerSettings
}

// LoadBalancerSettings are the provider's own fields of an entry of load_balancers.
type LoadBalancerSettings interface {
	// Validate returns every rule that the entry at path breaks.
	Validate(path *field.Path) field.ErrorList
	// Parts returns the settings of each part of the entry by name, such as the settings of
	// each of its target groups. Parts of the same name have the same targets, even if they
	// belong to different entries. The server synchronizes each part on its own, so that a
	// change of an entry leaves its unchanged parts alone.
	Parts() map[string]LoadBalancerSettings
}

// TargetGroupParts returns the parts of an entry that lists groups of targets: a group with a
// port each. A nil port means the default port of each group.
func TargetGroupParts(groups []string, port *int32, part func(group string) LoadBalancerSettings) map[string]LoadBalancerSettings {
	parts := map[string]LoadBalancerSettings{}
	for _, group := range groups {
		name := group
		if port != nil {
			name += fmt.Sprintf(" port %d", *port)
		}
		parts[name] = part(group)
	}
	return parts
}

// ValidatePort reports a port that no target can have.
func ValidatePort(path *field.Path, port *int32) field.ErrorList {
	if port != nil && (*port < 1 || *port > 65535) {
		return field.ErrorList{field.Invalid(path, *port, "must be between 1 and 65535")}
	}
	return nil
}
