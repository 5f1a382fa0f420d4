// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/instance"
)

// LoadBalancers is implemented by a Provider that makes instances targets of load
// balancers (docs/server.md#load-balancers). The server decides which ones and when: it
// compares Targets with what is wanted and repeats each call until the two agree.
//
// A load balancer stands for everything that its entry in the configuration lists, such as
// several target groups. An instance is registered when it is registered with all of them,
// and deregistered when it is with none.
//
// Register and Deregister have a context of CallContextFunc. An implementation that makes
// several calls with one calls deadline.Check before each call that changes something.
type LoadBalancers interface {
	// Register registers instances. That one is registered is no error. It returns nil only
	// if all of them are; after an error some may be.
	Register(ctx context.Context, balancer LoadBalancer, instances []instance.VM) error
	// Deregister begins to deregister instances. It does not wait until the load balancer
	// has ended their connections. That one is no target, is being deregistered, or does
	// not exist any more is no error.
	Deregister(ctx context.Context, balancer LoadBalancer, instances []instance.VM) error
	// Targets returns all targets, also those of others, or an error: never a part of them.
	// A target whose deregistration delay is not over is one of them. A target that is
	// registered with a part of what the entry lists is Partial.
	Targets(ctx context.Context, balancer LoadBalancer) ([]Target, error)
}

// LoadBalancer is one entry of load_balancers in the configuration.
type LoadBalancer struct {
	// Key is its key in the configuration.
	Key string
	// Settings are what LoadBalancerOptions have read of the entry.
	Settings LoadBalancerSettings
}

// Target is one target of a load balancer.
type Target struct {
	// ID is the id of the instance. It is empty if the target is of another client, or the
	// load balancer does not show it.
	ID string
	// ProviderID identifies the instance if ID is empty. Both are empty for a target that
	// certainly is no instance of this shard.
	ProviderID string
	State      TargetState
}

// TargetState is the state of a target.
type TargetState int

const (
	// Registered targets get requests if they are healthy.
	Registered TargetState = iota
	// Partial targets are registered with a part of what the entry lists.
	Partial
	// Draining targets get no new requests. Those that they have are not ended yet.
	Draining
)

// LoadBalancerOptions are implemented by the Options of a Provider that implements
// LoadBalancers. A configuration with load balancers is rejected for any other provider.
type LoadBalancerOptions interface {
	// ReadLoadBalancer reads the provider's own fields of one entry of load_balancers, and
	// reports those of the wrong type. Fields that it does not read are reported as unknown.
	ReadLoadBalancer(o *jsonc.Object) LoadBalancerSettings
}

// LoadBalancerSettings are the provider's own fields of one entry of load_balancers.
type LoadBalancerSettings interface {
	// Validate returns every rule that the entry at path breaks.
	Validate(path *field.Path) field.ErrorList
	// Parts returns the settings of each thing that the entry lists, such as each of several
	// target groups, by a name. Parts of the same name have the same targets, in whichever
	// entry they are. The server decides for each part, so that a change of an entry does
	// not touch the parts that stay.
	Parts() map[string]LoadBalancerSettings
}
