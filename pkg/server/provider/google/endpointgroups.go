// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// endpointBatch is how many endpoints a call may have.
const endpointBatch = 500

// Provider is the provider of the virtual machines of one shard, which can be endpoints of
// network endpoint groups.
type Provider struct {
	*cloud.Provider
	*endpointGroups
}

var (
	_ provider.Provider      = (*Provider)(nil)
	_ provider.Expecter      = (*Provider)(nil)
	_ provider.LoadBalancers = (*Provider)(nil)
)

// endpointGroups registers instances as endpoints of network endpoint groups.
type endpointGroups struct {
	api *API

	// mu guards draining, which has until when an endpoint is assumed to have connections: a
	// list need not have it any more. Another process begins with its own call to detach it.
	mu       sync.Mutex
	draining map[drainingEndpoint]time.Time
}

// drainingEndpoint is an endpoint that was detached.
type drainingEndpoint struct {
	group string
	// port is zero for that of the group.
	port     int32
	instance string
}

func newEndpointGroups(api *API) *endpointGroups {
	return &endpointGroups{api: api, draining: map[drainingEndpoint]time.Time{}}
}

// Register attaches instances to all network endpoint groups of an entry.
func (g *endpointGroups) Register(ctx context.Context, balancer provider.LoadBalancer, list []instance.VM) error {
	return g.each(ctx, balancer, list, func(s balancerSettings, group string, ids []string) error {
		if err := g.change(ctx, s, attach, group, ids); err != nil {
			return fmt.Errorf("attach %d instances to network endpoint group %s: %w", len(ids), group, throttled(err))
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, id := range ids {
			delete(g.draining, s.draining(group, id))
		}
		return nil
	})
}

// Deregister detaches instances from all network endpoint groups of an entry.
func (g *endpointGroups) Deregister(ctx context.Context, balancer provider.LoadBalancer, list []instance.VM) error {
	return g.each(ctx, balancer, list, func(s balancerSettings, group string, ids []string) error {
		// An operation that takes long has begun. Until it has finished, lists have the endpoints.
		if err := g.change(ctx, s, detach, group, ids); err != nil && !errors.Is(err, cloud.ErrInProgress) {
			return fmt.Errorf("detach %d instances from network endpoint group %s: %w", len(ids), group, throttled(err))
		}
		if g.api.options.DrainingTimeout == 0 {
			return nil
		}
		until := time.Now().Add(g.api.options.DrainingTimeout)
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, id := range ids {
			// Also one that was not attached: the leader before may have detached it.
			if key := s.draining(group, id); g.draining[key].IsZero() {
				g.draining[key] = until
			}
		}
		return nil
	})
}

// Targets lists the endpoints of all network endpoint groups of an entry.
func (g *endpointGroups) Targets(ctx context.Context, balancer provider.LoadBalancer) ([]provider.Target, error) {
	settings, err := balancerSettingsOf(balancer)
	if err != nil {
		return nil, err
	}
	registered, all := map[string]int{}, map[string]bool{}
	for _, group := range settings.groups {
		states, err := g.list(ctx, settings, group)
		if err != nil {
			return nil, err
		}
		for name, isRegistered := range states {
			all[name] = true
			if isRegistered {
				registered[name]++
			}
		}
		for _, name := range g.drainingOf(settings, group) {
			all[name] = true
		}
	}
	var list []provider.Target
	for _, name := range slices.Sorted(maps.Keys(all)) {
		target := provider.Target{State: provider.Partial}
		switch registered[name] {
		case 0:
			target.State = provider.Draining
		case len(settings.groups):
			target.State = provider.Registered
		}
		// The name of the virtual machine of an instance is the id.
		if isInstanceID(name) {
			target.ID = name
		}
		list = append(list, target)
	}
	return list, nil
}

// list returns the virtual machines that are endpoints of a network endpoint group by name, and
// true for those that are not being drained.
func (g *endpointGroups) list(ctx context.Context, s balancerSettings, group string) (map[string]bool, error) {
	all, err := g.api.endpoints(ctx, group)
	if err != nil {
		return nil, fmt.Errorf("list network endpoint group %s: %w", group, throttled(err))
	}
	states := map[string]bool{}
	for _, one := range all {
		if s.port != nil && (one.Endpoint.Port == nil || *one.Endpoint.Port != *s.port) {
			continue // another entry, or another client, has attached it
		}
		name := one.Endpoint.name()
		states[name] = states[name] || !one.isDraining()
	}
	return states, nil
}

// drainingOf returns the virtual machines of a network endpoint group whose draining timeout is
// not over.
func (g *endpointGroups) drainingOf(s balancerSettings, group string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(g.draining, func(_ drainingEndpoint, until time.Time) bool { return !now.Before(until) })
	var all []string
	for key := range g.draining {
		if key == s.draining(group, key.instance) {
			all = append(all, key.instance)
		}
	}
	return all
}

// change attaches or detaches endpoints. The API may refuse a call because of one of them: what
// a list proves is done, and the others are requested again.
func (g *endpointGroups) change(ctx context.Context, s balancerSettings, method, group string, ids []string) error {
	err := g.call(ctx, s, method, group, ids)
	if err == nil || !isRefused(err) {
		return err
	}
	states, listErr := g.list(ctx, s, group)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	left := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return states[id] == (method == attach) })
	switch len(left) {
	case 0:
		return nil
	case len(ids):
		return err
	}
	return g.call(ctx, s, method, group, left)
}

// call makes one call, and waits until its operation has finished.
func (g *endpointGroups) call(ctx context.Context, s balancerSettings, method, group string, ids []string) error {
	list := make([]endpoint, len(ids))
	for n, id := range ids {
		list[n] = endpoint{Instance: id, Port: s.port}
	}
	if err := deadline.Check(ctx); err != nil {
		return err
	}
	op, err := g.api.changeEndpoints(ctx, method, group, list)
	if err != nil {
		return err
	}
	return g.api.await(ctx, op, time.Now().Add(g.api.timeout))
}

// each calls do for batches of instances with each network endpoint group. A group for which
// that fails does not keep the others.
func (g *endpointGroups) each(ctx context.Context, balancer provider.LoadBalancer, list []instance.VM, do func(s balancerSettings, group string, ids []string) error) error {
	settings, err := balancerSettingsOf(balancer)
	if err != nil {
		return err
	}
	ids := make([]string, len(list))
	for n, vm := range list {
		ids[n] = vm.ID
	}
	var errs []error
	for _, group := range settings.groups {
		for batch := range slices.Chunk(ids, endpointBatch) {
			if err := deadline.Check(ctx); err != nil {
				return errors.Join(append(errs, err)...)
			}
			if err := do(settings, group, batch); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// balancerSettingsOf returns the fields of an entry.
func balancerSettingsOf(balancer provider.LoadBalancer) (balancerSettings, error) {
	settings, ok := balancer.Settings.(balancerSettings)
	if !ok || len(settings.groups) == 0 {
		return balancerSettings{}, fmt.Errorf("load balancer %s has no network endpoint groups", balancer.Key)
	}
	return settings, nil
}

// draining returns an endpoint of the entry.
func (s balancerSettings) draining(group, id string) drainingEndpoint {
	e := drainingEndpoint{group: group, instance: id}
	if s.port != nil {
		e.port = *s.port
	}
	return e
}
