// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
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

// endpoint is an endpoint of a network endpoint group. Without an address it is the primary
// one of its virtual machine.
type endpoint struct {
	// Instance is the name or the address of a virtual machine.
	Instance string `json:"instance"`
	Port     *int32 `json:"port,omitempty"`
}

// name returns the name of the virtual machine.
func (e endpoint) name() string { return e.Instance[strings.LastIndex(e.Instance, "/")+1:] }

// statusDraining is the health of an endpoint that was detached and has connections.
const statusDraining = "DRAINING"

// listedEndpoint is an endpoint with its health at each load balancer.
type listedEndpoint struct {
	Endpoint *endpoint `json:"networkEndpoint"`
	Healths  []struct {
		State string `json:"healthState"`
	} `json:"healths"`
}

// isDraining reports whether the endpoint is being drained at all load balancers.
func (e listedEndpoint) isDraining() bool {
	for _, one := range e.Healths {
		if one.State != statusDraining {
			return false
		}
	}
	return len(e.Healths) > 0
}

// endpoints reads all endpoints of a network endpoint group.
func (a *API) endpoints(ctx context.Context, group string) (all []listedEndpoint, err error) {
	const method = "compute.networkEndpointGroups.listNetworkEndpoints"
	all, err = listPages(ctx, a, googleapi.Call{
		Name: method, Method: http.MethodPost, Path: a.zonePath("networkEndpointGroups", group, "listNetworkEndpoints"),
		Query: url.Values{}, Body: map[string]string{"healthStatus": "SHOW"},
	}, "compute#networkEndpointGroupsListNetworkEndpoints", "networkEndpoint(instance,port),healths(healthState)", all)
	if err != nil {
		return nil, err
	}
	for _, one := range all {
		if one.Endpoint == nil {
			return nil, fmt.Errorf("%s: the response has an item without an endpoint", method)
		}
	}
	return all, nil
}

// Methods that change the endpoints of a network endpoint group.
const (
	attach = "attachNetworkEndpoints"
	detach = "detachNetworkEndpoints"
)

// changeEndpoints requests to attach or to detach endpoints.
func (a *API) changeEndpoints(ctx context.Context, method, group string, list []endpoint) (op operation, err error) {
	// The same one for the attempts that the HTTP client makes.
	requestID, err := uuid.NewRandom()
	if err != nil {
		return operation{}, err
	}
	return op, a.client.DoJSON(ctx, googleapi.Call{
		Name: "compute.networkEndpointGroups." + method, Method: http.MethodPost, Path: a.zonePath("networkEndpointGroups", group, method),
		Query: url.Values{"requestId": {requestID.String()}}, Body: map[string][]endpoint{"networkEndpoints": list},
	}, &op)
}

// isRefused reports whether an error is one of the API about a request: some of what was
// requested may be true already.
func isRefused(err error) bool {
	response, ok := googleapi.AsError(err)
	return isFailure(err) || ok && len(response.Reasons) > 0 && response.Status/100 == 4 && !googleapi.IsThrottled(err)
}
