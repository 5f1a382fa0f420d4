// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcetest

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxEndpoints is how many endpoints a call may have, which is not documented.
const maxEndpoints = 500

// endpoint is an endpoint of a network endpoint group in requests and responses.
type endpoint struct {
	Instance  string `json:"instance,omitempty"`
	IPAddress string `json:"ipAddress,omitempty"`
	Port      int    `json:"port,omitempty"`
}

// endpointGroup is a zonal network endpoint group.
type endpointGroup struct {
	zone, name, kind string
	// port is the default port.
	port      int
	endpoints []groupEndpoint
}

// groupEndpoint is an endpoint that is attached, or that is being drained until a time.
type groupEndpoint struct {
	endpoint
	drained time.Time
}

// AddEndpointGroup adds a network endpoint group of a type. A default port of 0 means no
// default port.
func (s *Server) AddEndpointGroup(zone, name, kind string, port int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[key(zone, name)] = &endpointGroup{zone: zone, name: name, kind: kind, port: port}
}

// PutEndpoint attaches a machine, like another client.
func (s *Server) PutEndpoint(zone, group, machine string, port int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[key(zone, group)]
	g.endpoints = append(g.endpoints, groupEndpoint{endpoint: endpoint{Instance: s.link(zone, machine), IPAddress: "10.0.0.2", Port: port}})
}

// Endpoints returns the ports of the attached endpoints of a machine.
func (s *Server) Endpoints(zone, group, machine string) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	var ports []int
	for _, member := range s.groups[key(zone, group)].endpoints {
		if member.Instance == s.link(zone, machine) && member.drained.IsZero() {
			ports = append(ports, member.Port)
		}
	}
	return ports
}

func (s *Server) link(zone, machine string) string { return root + path(zone, "instances", machine) }

// endpointGroup returns the network endpoint group of a call.
func (s *Server) endpointGroup(r *request) (*endpointGroup, error) {
	zone, name := r.variables["zone"], r.variables["networkEndpointGroup"]
	g := s.groups[key(zone, name)]
	if g == nil {
		return nil, notFound(path(zone, "networkEndpointGroups", name))
	}
	g.endpoints = slices.DeleteFunc(g.endpoints, func(e groupEndpoint) bool { return !e.drained.IsZero() && !time.Now().Before(e.drained) })
	return g, nil
}

// readEndpoints returns the endpoints of a request with all members.
func (s *Server) readEndpoints(r *request, g *endpointGroup) ([]endpoint, error) {
	var body struct {
		Endpoints []endpoint `json:"networkEndpoints"`
	}
	if err := unmarshalStrict(r.body, &body); err != nil {
		return nil, invalid("%v", err)
	}
	if len(body.Endpoints) == 0 || len(body.Endpoints) > maxEndpoints {
		return nil, invalid("Invalid value for field 'resource.networkEndpoints': %d endpoints, at most %d are allowed", len(body.Endpoints), maxEndpoints)
	}
	var all []endpoint
	for _, item := range body.Endpoints {
		name := item.Instance[strings.LastIndex(item.Instance, "/")+1:]
		m := s.visible(g.zone, name)
		switch {
		case m == nil:
			return nil, invalid("Invalid value for field 'resource.instance': '%s'. The referenced instance resource cannot be found.", item.Instance)
		case g.kind == "GCE_VM_IP" && item.Port != 0:
			return nil, invalid("Invalid value for field 'resource.port': '%d'. Port must not be specified for endpoints of type GCE_VM_IP.", item.Port)
		case g.kind != "GCE_VM_IP" && item.Port == 0 && g.port == 0:
			return nil, invalid("Invalid value for field 'resource.port': '0'. Port must be specified if the group has no default port.")
		case item.IPAddress != "" && item.IPAddress != m.NetworkInterfaces[0].NetworkIP:
			return nil, invalid("Invalid value for field 'resource.ipAddress': '%s'. It does not belong to the instance.", item.IPAddress)
		}
		item.Instance, item.IPAddress = s.link(g.zone, name), m.NetworkInterfaces[0].NetworkIP
		if item.Port == 0 {
			item.Port = g.port
		}
		if slices.Contains(all, item) {
			return nil, invalid("Invalid value for field 'resource.networkEndpoints': '%s' is there twice", item.Instance)
		}
		all = append(all, item)
	}
	return all, nil
}

// index returns where an endpoint is that is attached, less than zero if it is not.
func (g *endpointGroup) index(e endpoint) int {
	return slices.IndexFunc(g.endpoints, func(member groupEndpoint) bool { return member.endpoint == e && member.drained.IsZero() })
}

// changeEndpoints begins to attach or to detach endpoints. The change has its effect when the
// operation has finished. The documentation does not describe repeated calls. Here they
// change nothing and are refused, at once or by their operation.
func (s *Server) changeEndpoints(r *request, kind string, isDone func(*endpointGroup, endpoint) bool, do func(*endpointGroup, endpoint)) (any, error) {
	if op, err := s.repeated(r); op != nil || err != nil {
		return op.resource(), err
	}
	g, err := s.endpointGroup(r)
	if err != nil {
		return nil, err
	}
	list, err := s.readEndpoints(r, g)
	if err != nil {
		return nil, err
	}
	if n := slices.IndexFunc(list, func(e endpoint) bool { return isDone(g, e) }); n >= 0 {
		return nil, invalid("Invalid value for field 'resource.networkEndpoints[%d]': %s of '%s' was done before", n, kind, list[n].Instance)
	}
	op := s.begin(g.zone, kind, g.name, s.OperationTime)
	op.finish = func(time.Time) {
		for _, endpoint := range list {
			if isDone(g, endpoint) {
				op.fail("INVALID_USAGE", fmt.Sprintf("%s of '%s' was done before", kind, endpoint.Instance))
				return
			}
		}
		for _, endpoint := range list {
			do(g, endpoint)
		}
	}
	s.remember(r, op)
	return op.resource(), nil
}

func (s *Server) attachEndpoints(r *request) (any, error) {
	return s.changeEndpoints(r, "attachNetworkEndpoints",
		func(g *endpointGroup, e endpoint) bool { return g.index(e) >= 0 },
		func(g *endpointGroup, e endpoint) {
			g.endpoints = slices.DeleteFunc(g.endpoints, func(member groupEndpoint) bool { return member.endpoint == e })
			g.endpoints = append(g.endpoints, groupEndpoint{endpoint: e})
		})
}

func (s *Server) detachEndpoints(r *request) (any, error) {
	return s.changeEndpoints(r, "detachNetworkEndpoints",
		func(g *endpointGroup, e endpoint) bool { return g.index(e) < 0 },
		func(g *endpointGroup, e endpoint) { g.endpoints[g.index(e)].drained = time.Now().Add(s.DrainingTime) })
}

// listEndpoints lists the endpoints that are attached, or are being drained.
func (s *Server) listEndpoints(r *request) (any, error) {
	g, err := s.endpointGroup(r)
	if err != nil {
		return nil, err
	}
	var body struct {
		HealthStatus string `json:"healthStatus"`
	}
	if err := unmarshalStrict(r.body, &body); err != nil {
		return nil, invalid("%v", err)
	}
	var all []any
	for _, member := range g.endpoints {
		item := map[string]any{"networkEndpoint": member.endpoint}
		if body.HealthStatus == "SHOW" {
			state := "HEALTHY"
			if !member.drained.IsZero() {
				state = "DRAINING"
			}
			item["healths"] = []any{map[string]string{"healthState": state}}
		}
		all = append(all, item)
	}
	first, end, next, err := s.page(r.URL.Query(), len(all))
	if err != nil {
		return nil, err
	}
	page := map[string]any{"kind": "compute#networkEndpointGroupsListNetworkEndpoints", "id": g.name}
	if first < end {
		page["items"] = all[first:end]
	}
	if next != "" {
		page["nextPageToken"] = next
	}
	return page, nil
}
