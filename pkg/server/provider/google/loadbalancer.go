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

// balancerSettings are the fields of an entry of load_balancers, or of one of its parts.
type balancerSettings struct {
	// groups are the names of zonal network endpoint groups. A part has one.
	groups []string
	// port is the port of the endpoints, nil for the default port of each group.
	port *int32
}

var _ provider.LoadBalancerOptions = (*Options)(nil)

// ReadLoadBalancer reads an entry of load_balancers.
func (*Options) ReadLoadBalancer(o *jsonc.Object) provider.LoadBalancerSettings {
	return balancerSettings{groups: o.Strings("network_endpoint_groups"), port: o.Int32("port")}
}

// Parts returns the settings of each network endpoint group.
func (s balancerSettings) Parts() map[string]provider.LoadBalancerSettings {
	return provider.TargetGroupParts(s.groups, s.port, func(group string) provider.LoadBalancerSettings {
		return balancerSettings{groups: []string{group}, port: s.port}
	})
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
	return append(errs, provider.ValidatePort(path.Child("port"), s.port)...)
}

// endpointBatch is the maximum number of endpoints in a request
// (https://cloud.google.com/compute/docs/reference/rest/v1/networkEndpointGroups/attachNetworkEndpoints).
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

	// mu guards draining: until when a detached endpoint is assumed to have connections. A list
	// need not contain such an endpoint. Another process detaches it again, and waits again.
	mu       sync.Mutex
	draining map[drainingEndpoint]time.Time
}

// drainingEndpoint is an endpoint that was detached.
type drainingEndpoint struct {
	group string
	// port is 0 for the default port of the group.
	port     int32
	instance string
}

func newEndpointGroups(api *API) *endpointGroups {
	return &endpointGroups{api: api, draining: map[drainingEndpoint]time.Time{}}
}

// endpointGroup is a network endpoint group, with the port of the endpoints.
type endpointGroup struct {
	name string
	// port is nil for the default port of the group.
	port *int32
}

// endpointGroupOf returns the network endpoint group of a part of a load balancer.
func endpointGroupOf(balancer provider.LoadBalancer) (endpointGroup, error) {
	settings, ok := balancer.Settings.(balancerSettings)
	if !ok || len(settings.groups) != 1 {
		return endpointGroup{}, fmt.Errorf("load balancer %s has no single network endpoint group", balancer.Key)
	}
	return endpointGroup{name: settings.groups[0], port: settings.port}, nil
}

// draining returns the key of an instance's endpoint.
func (g endpointGroup) draining(id string) drainingEndpoint {
	e := drainingEndpoint{group: g.name, instance: id}
	if g.port != nil {
		e.port = *g.port
	}
	return e
}

// Register attaches instances to a network endpoint group.
func (g *endpointGroups) Register(ctx context.Context, balancer provider.LoadBalancer, list []instance.VM) error {
	return g.inBatches(ctx, balancer, list, func(group endpointGroup, ids []string) error {
		if err := g.change(ctx, attach, group, ids); err != nil {
			return fmt.Errorf("attach %d instances to network endpoint group %s: %w", len(ids), group.name, throttled(err))
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, id := range ids {
			delete(g.draining, group.draining(id))
		}
		return nil
	})
}

// Deregister detaches instances from a network endpoint group.
func (g *endpointGroups) Deregister(ctx context.Context, balancer provider.LoadBalancer, list []instance.VM) error {
	return g.inBatches(ctx, balancer, list, func(group endpointGroup, ids []string) error {
		// A long operation has begun, at least. Until it has finished, lists have the endpoints.
		if err := g.change(ctx, detach, group, ids); err != nil && !errors.Is(err, cloud.ErrInProgress) {
			return fmt.Errorf("detach %d instances from network endpoint group %s: %w", len(ids), group.name, throttled(err))
		}
		if g.api.options.DrainingTimeout == 0 {
			return nil
		}
		until := time.Now().Add(g.api.options.DrainingTimeout)
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, id := range ids {
			// This includes endpoints that were not attached: the former leader may have detached
			// them a moment ago.
			if key := group.draining(id); g.draining[key].IsZero() {
				g.draining[key] = until
			}
		}
		return nil
	})
}

// inBatches calls do for batches of instances. If a batch fails, it continues with the
// others.
func (g *endpointGroups) inBatches(ctx context.Context, balancer provider.LoadBalancer, list []instance.VM, do func(group endpointGroup, ids []string) error) error {
	group, err := endpointGroupOf(balancer)
	if err != nil {
		return err
	}
	ids := make([]string, len(list))
	for n, vm := range list {
		ids[n] = vm.ID
	}
	var errs []error
	for batch := range slices.Chunk(ids, endpointBatch) {
		if err := deadline.Check(ctx); err != nil {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, do(group, batch))
	}
	return errors.Join(errs...)
}

// Targets lists the endpoints of a network endpoint group, and the detached endpoints whose
// draining timeout is not over.
func (g *endpointGroups) Targets(ctx context.Context, balancer provider.LoadBalancer) ([]provider.Target, error) {
	group, err := endpointGroupOf(balancer)
	if err != nil {
		return nil, err
	}
	isRegistered, err := g.list(ctx, group)
	if err != nil {
		return nil, err
	}
	for _, name := range g.drainingIn(group) {
		if _, listed := isRegistered[name]; !listed {
			isRegistered[name] = false
		}
	}
	var list []provider.Target
	for _, name := range slices.Sorted(maps.Keys(isRegistered)) {
		target := provider.Target{State: provider.Draining}
		if isRegistered[name] {
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

// list returns the names of the virtual machines with an endpoint in the group. The value is
// false if all their endpoints are being drained.
func (g *endpointGroups) list(ctx context.Context, group endpointGroup) (map[string]bool, error) {
	all, err := g.api.endpoints(ctx, group.name)
	if err != nil {
		return nil, fmt.Errorf("list network endpoint group %s: %w", group.name, throttled(err))
	}
	isRegistered := map[string]bool{}
	for _, listed := range all {
		if group.port != nil && (listed.Endpoint.Port == nil || *listed.Endpoint.Port != *group.port) {
			continue // another part, or another client, has attached it
		}
		name := listed.Endpoint.name()
		isRegistered[name] = isRegistered[name] || !listed.isDraining()
	}
	return isRegistered, nil
}

// drainingIn returns the instances of a network endpoint group whose draining timeout is not
// over.
func (g *endpointGroups) drainingIn(group endpointGroup) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(g.draining, func(_ drainingEndpoint, until time.Time) bool { return !now.Before(until) })
	var all []string
	for key := range g.draining {
		if key == group.draining(key.instance) {
			all = append(all, key.instance)
		}
	}
	return all
}

// change attaches or detaches endpoints. The API may refuse a request because of one
// endpoint. Then change leaves out the endpoints that a list proves to be as requested, and
// requests the others again.
func (g *endpointGroups) change(ctx context.Context, method string, group endpointGroup, ids []string) error {
	err := g.call(ctx, method, group, ids)
	if err == nil || !isRefused(err) {
		return err
	}
	isRegistered, listErr := g.list(ctx, group)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	left := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return isRegistered[id] == (method == attach) })
	switch len(left) {
	case 0:
		return nil
	case len(ids):
		return err
	}
	return g.call(ctx, method, group, left)
}

// call sends one request, and waits until its operation has finished.
func (g *endpointGroups) call(ctx context.Context, method string, group endpointGroup, ids []string) error {
	list := make([]endpoint, len(ids))
	for n, id := range ids {
		list[n] = endpoint{Instance: id, Port: group.port}
	}
	if err := deadline.Check(ctx); err != nil {
		return err
	}
	op, err := g.api.changeEndpoints(ctx, method, group.name, list)
	if err != nil {
		return err
	}
	return g.api.await(ctx, op, time.Now().Add(g.api.timeout))
}

// endpoint is an endpoint of a network endpoint group. Its address is the primary address of
// the virtual machine.
type endpoint struct {
	// Instance is the name or the address of a virtual machine.
	Instance string `json:"instance"`
	Port     *int32 `json:"port,omitempty"`
}

// name returns the name of the virtual machine.
func (e endpoint) name() string { return e.Instance[strings.LastIndex(e.Instance, "/")+1:] }

// statusDraining is the health state of a detached endpoint that still has connections.
const statusDraining = "DRAINING"

// listedEndpoint is an endpoint with its health state at each load balancer.
type listedEndpoint struct {
	Endpoint *endpoint `json:"networkEndpoint"`
	Healths  []struct {
		State string `json:"healthState"`
	} `json:"healths"`
}

// isDraining reports whether all load balancers are draining the endpoint.
func (e listedEndpoint) isDraining() bool {
	for _, health := range e.Healths {
		if health.State != statusDraining {
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
	for _, listed := range all {
		if listed.Endpoint == nil {
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
	// The HTTP client may repeat the request, with the same id.
	requestID, err := uuid.NewRandom()
	if err != nil {
		return operation{}, err
	}
	return op, a.client.DoJSON(ctx, googleapi.Call{
		Name: "compute.networkEndpointGroups." + method, Method: http.MethodPost, Path: a.zonePath("networkEndpointGroups", group, method),
		Query: url.Values{"requestId": {requestID.String()}}, Body: map[string][]endpoint{"networkEndpoints": list},
	}, &op)
}

// isRefused reports whether the API has refused a request because of its content: an endpoint
// may already be attached, or be detached.
func isRefused(err error) bool {
	response, ok := googleapi.AsError(err)
	return isFailure(err) || ok && len(response.Reasons) > 0 && response.Status/100 == 4 && !googleapi.IsThrottled(err)
}
