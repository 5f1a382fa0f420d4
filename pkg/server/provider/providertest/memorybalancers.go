// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// ErrUnavailable is the error of calls that a test makes fail.
var ErrUnavailable = errors.New("the cloud is not available")

// BalancerSettings are the fields of an entry of load_balancers for Balancers.
type BalancerSettings struct {
	// Endpoint is mandatory.
	Endpoint string
	// Others are further endpoints of the entry. A part has no others.
	Others []string
}

// Validate requires an endpoint.
func (s BalancerSettings) Validate(path *field.Path) field.ErrorList {
	return validation.Required(path.Child("endpoint"), s.Endpoint)
}

// Parts returns the settings of each endpoint.
func (s BalancerSettings) Parts() map[string]provider.LoadBalancerSettings {
	endpoints := append([]string{s.Endpoint}, s.Others...)
	return provider.TargetGroupParts(endpoints, nil, func(endpoint string) provider.LoadBalancerSettings {
		return BalancerSettings{Endpoint: endpoint}
	})
}

// BalancerOptions add load balancers to the options of another provider.
type BalancerOptions struct{ provider.Options }

// ReadLoadBalancer reads the endpoint.
func (BalancerOptions) ReadLoadBalancer(o *jsonc.Object) provider.LoadBalancerSettings {
	return BalancerSettings{Endpoint: o.String("endpoint"), Others: o.Strings("other_endpoints")}
}

// Balancers are load balancers in memory. Each endpoint has a load balancer.
type Balancers struct {
	// Endpoints are the existing endpoints.
	Endpoints []string
	// Delay is the deregistration delay.
	Delay time.Duration
	// Called is called before each call, unless it is nil. The call fails with the error.
	Called func(operation, endpoint string, ids []string) error

	mu      sync.Mutex
	targets map[string]map[string]memoryTarget
	lost    int
}

// memoryTarget is one target in memory.
type memoryTarget struct {
	provider.Target
	// until is when its deregistration is over, zero if it is registered.
	until time.Time
}

var _ provider.LoadBalancers = (*Balancers)(nil)

// NewBalancers returns load balancers without targets.
func NewBalancers(endpoints ...string) *Balancers {
	return &Balancers{Endpoints: endpoints, targets: map[string]map[string]memoryTarget{}}
}

// LoseResponses makes the next calls fail after they have had their effect.
func (b *Balancers) LoseResponses(times int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = times
}

// Put registers a target of another client.
func (b *Balancers) Put(endpoint string, target provider.Target) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at(endpoint)[target.ID+target.ProviderID] = memoryTarget{Target: target}
}

// Remove removes a target, as another client does.
func (b *Balancers) Remove(endpoint, id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.at(endpoint), id)
}

// States returns the states of the targets by instance id, or else by provider id.
func (b *Balancers) States(endpoint string) map[string]provider.TargetState {
	b.mu.Lock()
	defer b.mu.Unlock()
	states := map[string]provider.TargetState{}
	for id, t := range b.at(endpoint) {
		states[id] = t.State
	}
	return states
}

// Register registers instances.
func (b *Balancers) Register(ctx context.Context, balancer provider.LoadBalancer, instances []instance.VM) error {
	return b.call(ctx, "register", balancer, instances, func(targets map[string]memoryTarget) {
		for _, vm := range instances {
			targets[vm.ID] = memoryTarget{Target: provider.Target{ID: vm.ID, ProviderID: vm.ProviderID}}
		}
	})
}

// Deregister deregisters instances.
func (b *Balancers) Deregister(ctx context.Context, balancer provider.LoadBalancer, instances []instance.VM) error {
	return b.call(ctx, "deregister", balancer, instances, func(targets map[string]memoryTarget) {
		for _, vm := range instances {
			if t, found := targets[vm.ID]; found && t.State != provider.Draining {
				t.State, t.until = provider.Draining, time.Now().Add(b.Delay)
				targets[vm.ID] = t
			}
		}
	})
}

// Targets lists the targets.
func (b *Balancers) Targets(ctx context.Context, balancer provider.LoadBalancer) (list []provider.Target, err error) {
	err = b.call(ctx, "list", balancer, nil, func(targets map[string]memoryTarget) {
		for _, id := range slices.Sorted(maps.Keys(targets)) {
			list = append(list, targets[id].Target)
		}
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// call makes one call for the endpoint of a part.
func (b *Balancers) call(ctx context.Context, operation string, balancer provider.LoadBalancer, instances []instance.VM, do func(map[string]memoryTarget)) error {
	endpoint := balancer.Settings.(BalancerSettings).Endpoint
	ids := make([]string, len(instances))
	for n, vm := range instances {
		ids[n] = vm.ID
	}
	if err := deadline.Check(ctx); err != nil {
		return err
	}
	if b.Called != nil {
		if err := b.Called(operation, endpoint, ids); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.Endpoints, endpoint) {
		return fmt.Errorf("there is no endpoint %q", endpoint)
	}
	do(b.at(endpoint))
	if b.lost > 0 {
		b.lost--
		return ErrUnavailable
	}
	return nil
}

// at returns the targets of an endpoint whose deregistration is not over. mu must be
// locked.
func (b *Balancers) at(endpoint string) map[string]memoryTarget {
	targets := b.targets[endpoint]
	if targets == nil {
		targets = map[string]memoryTarget{}
		b.targets[endpoint] = targets
	}
	maps.DeleteFunc(targets, func(_ string, t memoryTarget) bool { return !t.until.IsZero() && !time.Now().Before(t.until) })
	return targets
}
