// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// targetsDelay is the time between two lists of targets.
const targetsDelay = 2 * time.Second

// selectBalancers returns the entries of load_balancers with these keys.
func selectBalancers(c *config.Config, keys []string) ([]provider.LoadBalancer, error) {
	var selected []provider.LoadBalancer
	for _, key := range keys {
		balancer, found := c.LoadBalancers[key]
		if !found {
			return nil, fmt.Errorf("--load-balancers: %q is unknown, known are %s", key, validation.Keys(c.LoadBalancers))
		}
		selected = append(selected, balancer)
	}
	return selected, nil
}

// partsOf returns the parts of an entry in the order of their names: the provider's calls
// take one part each.
func partsOf(balancer provider.LoadBalancer) []provider.LoadBalancer {
	parts := balancer.Settings.Parts()
	list := make([]provider.LoadBalancer, 0, len(parts))
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		list = append(list, provider.LoadBalancer{Key: balancer.Key, Settings: parts[name]})
	}
	return list
}

// register registers an instance with all load balancers, and waits until all list it.
func (c *check) register(ctx context.Context, id string) (string, error) {
	vm := c.existing[id]
	api, err := c.session.balancers()
	if err != nil {
		return "", err
	}
	// A failed request may have had its effect.
	c.targets[id] = vm
	var keys []string
	for _, balancer := range c.balancers {
		for _, part := range partsOf(balancer) {
			if err := api.Register(ctx, part, []instance.VM{vm}); err != nil {
				return "", fmt.Errorf("load balancer %s: %w", balancer.Key, err)
			}
			if err := awaitTarget(ctx, api, part, vm, func(state provider.TargetState, listed bool) bool {
				return listed && state == provider.Registered
			}); err != nil {
				return "", err
			}
		}
		keys = append(keys, balancer.Key)
	}
	return strings.Join(keys, ", "), nil
}

// deregister deregisters the instances that may be targets. It waits until no load balancer
// lists them as registered. It does not wait for the deregistration delay, because no client
// has used them.
func (c *check) deregister(ctx context.Context) error {
	if len(c.targets) == 0 {
		return nil
	}
	api, err := c.session.balancers()
	if err != nil {
		return err
	}
	list := slices.Collect(maps.Values(c.targets))
	var errs []error
	for _, balancer := range c.balancers {
		for _, part := range partsOf(balancer) {
			if err := api.Deregister(ctx, part, list); err != nil {
				errs = append(errs, fmt.Errorf("load balancer %s: %w", balancer.Key, err))
				continue
			}
			for _, vm := range list {
				errs = append(errs, awaitTarget(ctx, api, part, vm, func(state provider.TargetState, listed bool) bool {
					return !listed || state == provider.Draining
				}))
			}
		}
	}
	err = errors.Join(errs...)
	if err == nil {
		clear(c.targets)
	}
	return err
}

// awaitTarget lists the targets of a load balancer until done returns true for an instance.
func awaitTarget(
	ctx context.Context, api provider.LoadBalancers, balancer provider.LoadBalancer, vm instance.VM, done func(state provider.TargetState, listed bool) bool,
) error {
	err := wait.PollUntilContextCancel(ctx, targetsDelay, true, func(ctx context.Context) (bool, error) {
		targets, err := api.Targets(ctx, balancer)
		if err != nil {
			return false, fmt.Errorf("load balancer %s: %w", balancer.Key, err)
		}
		at := slices.IndexFunc(targets, func(t provider.Target) bool {
			return t.ID == vm.ID || t.ID == "" && t.ProviderID != "" && t.ProviderID == vm.ProviderID
		})
		if at < 0 {
			return done(provider.Draining, false), nil
		}
		return done(targets[at].State, true), nil
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("load balancer %s does not list what was requested: %w", balancer.Key, context.Cause(ctx))
	}
	return err
}

// balancers returns the provider as LoadBalancers.
func (s *session) balancers() (provider.LoadBalancers, error) {
	api, can := s.Provider.(provider.LoadBalancers)
	if !can {
		return nil, errors.New("the provider has no load balancers")
	}
	return api, nil
}
