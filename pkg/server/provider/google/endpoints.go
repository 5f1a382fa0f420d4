// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/uuid"

	"nstance.dev/operator/pkg/server/googleapi"
)

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
