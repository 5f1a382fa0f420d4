// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// machine is a virtual machine.
type machine struct {
	resource
	zone    string
	subnet  *subnet
	created time.Time
	// runs is when it runs, zero if it never does without a change.
	runs time.Time
	// deleting is true after a call to delete it.
	deleting bool
}

// pastRequest is a request with a request id.
type pastRequest struct {
	body      []byte
	operation *operation
}

func key(zone, name string) string { return zone + "/" + name }

func path(zone string, parts ...string) string {
	return "projects/" + Project + "/zones/" + zone + "/" + strings.Join(parts, "/")
}

const root = "https://www.googleapis.com/compute/v1/"

// settle does what is due at a time. mu must be locked.
func (s *Server) settle(now time.Time) {
	for _, op := range s.operations {
		if !op.done && op.reads == 0 && !now.Before(op.end) {
			op.done = true
			if op.finish != nil {
				op.finish(op.end)
			}
		}
	}
	for _, one := range s.vms {
		if one.Status == "STAGING" && !now.Before(one.runs) {
			one.Status = "RUNNING"
			s.ran = append(s.ran, one.Name)
		}
	}
}

// repeated returns the operation of an earlier request with the same request id. mu must be
// locked.
func (s *Server) repeated(r *request) (*operation, error) {
	id := r.query("requestId")
	if err := checkRequestID(id); err != nil || id == "" {
		return nil, err
	}
	past := s.requests[r.method.ID+" "+id]
	switch {
	case past == nil:
		return nil, nil
	case !bytes.Equal(past.body, r.body) && !s.Lenient:
		return nil, invalid("Invalid value for field 'requestId': '%s'. The request ID was used for another request.", id)
	}
	return past.operation, nil
}

func (s *Server) remember(r *request, op *operation) {
	if id := r.query("requestId"); id != "" {
		s.requests[r.method.ID+" "+id] = &pastRequest{r.body, op}
	}
}

// insert creates a machine, which exists as soon as its operation has begun.
func (s *Server) insert(r *request) (any, error) {
	if op, err := s.repeated(r); op != nil || err != nil {
		return op.resource(), err
	}
	zone := r.variables["zone"]
	one := &machine{zone: zone, created: time.Now()}
	if err := json.Unmarshal(r.body, &one.resource); err != nil {
		return nil, invalid("%v", err)
	}
	if err := s.checkBody(r, &one.resource); err != nil {
		return nil, err
	}
	if s.vms[key(zone, one.Name)] != nil {
		return nil, &failure{409, "alreadyExists", fmt.Sprintf("The resource '%s' already exists", path(zone, "instances", one.Name))}
	}
	op := s.begin(zone, "insert", one.Name, s.OperationTime)
	s.remember(r, op)
	s.create(one, op)
	return op.resource(), nil
}

// create begins to create a machine. mu must be locked.
func (s *Server) create(one *machine, op *operation) {
	s.nextID++
	one.subnet = s.subnetOf(one.NetworkInterfaces[0].Subnetwork)
	one.ID, one.Kind, one.Zone, one.Status = strconv.FormatUint(s.nextID, 10), "compute#instance", root+"projects/"+Project+"/zones/"+one.zone, "PROVISIONING"
	one.CreationTimestamp = one.created.Format(time.RFC3339)
	one.MachineType = root + "projects/" + Project + "/" + one.MachineType
	one.NetworkInterfaces[0].Name = "nic0"
	one.NetworkInterfaces[0].sign()
	op.target = one.ID
	code, message := s.problem(one)
	if code == "" {
		one.NetworkInterfaces[0].NetworkIP = one.subnet.address(s.nextID)
	}
	s.vms[key(one.zone, one.Name)] = one
	op.finish = func(at time.Time) {
		if s.vms[key(one.zone, one.Name)] != one {
			op.fail("RESOURCE_NOT_READY", "The resource was deleted while it was created")
			return
		}
		if code != "" {
			op.fail(code, message)
			delete(s.vms, key(one.zone, one.Name))
			return
		}
		one.Status, one.runs = "STAGING", at.Add(s.BootTime)
		s.made = append(s.made, one.Name)
		for n, d := range one.Disks {
			d.Source = root + path(one.zone, "disks", fmt.Sprintf("%s-%d", one.Name, n))
			d.InitializeParams = nil
			s.disks[d.Source] = true
		}
	}
}

// problem returns why a machine cannot be created, as its operation reports it.
func (s *Server) problem(one *machine) (code, message string) {
	kind := one.MachineType[strings.LastIndex(one.MachineType, "/")+1:]
	model := "STANDARD"
	if one.Scheduling != nil && one.Scheduling.ProvisioningModel != "" {
		model = one.Scheduling.ProvisioningModel
	}
	count := 0
	for _, other := range s.vms {
		if other != one {
			count++
		}
	}
	switch {
	case s.rejecting[kind] != "":
		return s.rejecting[kind], "A test has set this error"
	case s.exhausted[kind+" "+model]:
		return "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", fmt.Sprintf("The zone '%s' does not have enough resources available to fulfill the request.", path(one.zone))
	case s.free(one.subnet) <= 0 || one.subnet.exhausted:
		return "IP_SPACE_EXHAUSTED", "IP space of the subnetwork is exhausted."
	case count >= s.quota:
		return "QUOTA_EXCEEDED", "Quota 'CPUS' exceeded. Limit: 24.0 in region."
	}
	return "", ""
}

// visible returns a machine that responses show, or nil. mu must be locked.
func (s *Server) visible(zone, name string) *machine {
	one := s.vms[key(zone, name)]
	if one == nil || time.Since(one.created) < s.VisibilityDelay {
		return nil
	}
	return one
}

func (s *Server) get(r *request) (any, error) {
	one := s.visible(r.variables["zone"], r.variables["instance"])
	if one == nil {
		return nil, notFound(path(r.variables["zone"], "instances", r.variables["instance"]))
	}
	return one.resource, nil
}

func (s *Server) list(r *request) (any, error) {
	filter, err := parseFilter(r.query("filter"))
	if err != nil {
		return nil, err
	}
	var all []resource
	for _, name := range slices.Sorted(maps.Keys(s.vms)) {
		one := s.vms[name]
		if one.zone == r.variables["zone"] && s.visible(one.zone, one.Name) != nil && one.matches(filter) {
			all = append(all, one.resource)
		}
	}
	first, end, next, err := s.page(r.URL.Query(), len(all))
	if err != nil {
		return nil, err
	}
	page := map[string]any{"kind": "compute#instanceList", "id": path(r.variables["zone"], "instances")}
	if first < end {
		page["items"] = all[first:end]
	}
	if next != "" {
		page["nextPageToken"] = next
	}
	return page, nil
}

func (m *machine) matches(filter []condition) bool {
	return !slices.ContainsFunc(filter, func(c condition) bool {
		label, found := strings.CutPrefix(c.field, "labels.")
		return !found || (m.Labels[label] == c.value) == c.not
	})
}

// delete begins to delete a machine.
func (s *Server) delete(r *request) (any, error) {
	if op, err := s.repeated(r); op != nil || err != nil {
		return op.resource(), err
	}
	zone, name := r.variables["zone"], r.variables["instance"]
	one := s.visible(zone, name)
	switch {
	case one == nil:
		return nil, notFound(path(zone, "instances", name))
	case one.deleting:
		return nil, &failure{400, "resourceNotReady", fmt.Sprintf("The resource '%s' is not ready", path(zone, "instances", name))}
	}
	one.deleting, one.Status = true, "STOPPING"
	op := s.begin(zone, "delete", name, s.DeleteTime)
	op.target = one.ID
	op.finish = func(time.Time) { s.remove(one) }
	s.remember(r, op)
	return op.resource(), nil
}

// remove deletes a machine and those of its disks that are deleted with it. mu must be
// locked.
func (s *Server) remove(one *machine) {
	if s.vms[key(one.zone, one.Name)] != one {
		return
	}
	delete(s.vms, key(one.zone, one.Name))
	s.deleted = append(s.deleted, one.Name)
	for _, g := range s.groups {
		g.endpoints = slices.DeleteFunc(g.endpoints, func(e groupEndpoint) bool { return e.Instance == s.link(one.zone, one.Name) })
	}
	for _, d := range one.Disks {
		if d.AutoDelete {
			delete(s.disks, d.Source)
		}
	}
}
