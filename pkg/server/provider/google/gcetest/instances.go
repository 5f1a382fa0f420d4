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
	// runs is when the machine runs, or zero if it stays as it is.
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

// settle applies all changes that are due at a time. mu must be locked.
func (s *Server) settle(now time.Time) {
	for _, op := range s.operations {
		if !op.done && op.reads == 0 && !now.Before(op.end) {
			op.done = true
			if op.finish != nil {
				op.finish(op.end)
			}
		}
	}
	for _, vm := range s.vms {
		if vm.Status == "STAGING" && !now.Before(vm.runs) {
			vm.Status = "RUNNING"
			s.ran = append(s.ran, vm.Name)
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

// insert creates a machine, which exists as soon as its operation has begun. This, and the response
// for a name that is used, is not documented.
func (s *Server) insert(r *request) (any, error) {
	if op, err := s.repeated(r); op != nil || err != nil {
		return op.resource(), err
	}
	zone := r.variables["zone"]
	vm := &machine{zone: zone, created: time.Now()}
	if err := json.Unmarshal(r.body, &vm.resource); err != nil {
		return nil, invalid("%v", err)
	}
	if err := s.checkAccess(&vm.resource, r.query("sourceInstanceTemplate")); err != nil {
		return nil, err
	}
	if err := s.checkBody(r, &vm.resource); err != nil {
		return nil, err
	}
	if s.vms[key(zone, vm.Name)] != nil {
		return nil, &failure{409, "alreadyExists", fmt.Sprintf("The resource '%s' already exists", path(zone, "instances", vm.Name))}
	}
	op := s.begin(zone, "insert", vm.Name, s.OperationTime)
	s.remember(r, op)
	s.create(vm, op)
	return op.resource(), nil
}

// create begins to create a machine. mu must be locked.
func (s *Server) create(vm *machine, op *operation) {
	s.nextID++
	vm.subnet = s.subnetOf(vm.NetworkInterfaces[0].Subnetwork)
	vm.ID, vm.Kind, vm.Zone, vm.Status = strconv.FormatUint(s.nextID, 10), "compute#instance", root+"projects/"+Project+"/zones/"+vm.zone, "PROVISIONING"
	vm.CreationTimestamp = vm.created.Format(time.RFC3339)
	vm.MachineType = root + "projects/" + Project + "/" + vm.MachineType
	vm.NetworkInterfaces[0].Name = "nic0"
	vm.NetworkInterfaces[0].sign()
	op.target = vm.ID
	code, message := s.problem(vm)
	if code == "" {
		vm.subnet.connect(vm.NetworkInterfaces[0], s.nextID)
	}
	s.vms[key(vm.zone, vm.Name)] = vm
	op.finish = func(at time.Time) {
		if s.vms[key(vm.zone, vm.Name)] != vm {
			op.fail("RESOURCE_NOT_READY", "The resource was deleted while it was created")
			return
		}
		if code != "" {
			op.fail(code, message)
			delete(s.vms, key(vm.zone, vm.Name))
			return
		}
		vm.Status, vm.runs = "STAGING", at.Add(s.BootTime)
		s.made = append(s.made, vm.Name)
		for n, d := range vm.Disks {
			d.Source = root + path(vm.zone, "disks", fmt.Sprintf("%s-%d", vm.Name, n))
			d.InitializeParams = nil
			s.disks[d.Source] = true
		}
	}
}

// problem returns why a machine cannot be created, as its operation reports it.
func (s *Server) problem(vm *machine) (code, message string) {
	kind := vm.MachineType[strings.LastIndex(vm.MachineType, "/")+1:]
	model := "STANDARD"
	if vm.Scheduling != nil && vm.Scheduling.ProvisioningModel != "" {
		model = vm.Scheduling.ProvisioningModel
	}
	count := 0
	for _, other := range s.vms {
		if other != vm {
			count++
		}
	}
	address := vm.NetworkInterfaces[0].NetworkIP
	switch {
	case address != "" && s.inUse(vm, []aliasRange{{Range: address}}) != "":
		return "IP_IN_USE_BY_ANOTHER_RESOURCE", fmt.Sprintf("IP '%s' is already being used by another resource.", address)
	case s.rejecting[kind] != "":
		return s.rejecting[kind], "A test has set this error"
	case s.exhausted[kind+" "+model]:
		return "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", fmt.Sprintf("The zone '%s' does not have enough resources available to fulfill the request.", path(vm.zone))
	case s.free(vm.subnet) <= 0 && !vm.subnet.ipv6Only || vm.subnet.exhausted:
		return "IP_SPACE_EXHAUSTED", "IP space of the subnetwork is exhausted."
	case count >= s.quota:
		return "QUOTA_EXCEEDED", "Quota 'CPUS' exceeded. Limit: 24.0 in region."
	}
	return "", ""
}

// visible returns a machine that responses show, or nil. mu must be locked.
func (s *Server) visible(zone, name string) *machine {
	vm := s.vms[key(zone, name)]
	if vm == nil || time.Since(vm.created) < s.VisibilityDelay {
		return nil
	}
	return vm
}

func (s *Server) get(r *request) (any, error) {
	vm := s.visible(r.variables["zone"], r.variables["instance"])
	if vm == nil {
		return nil, notFound(path(r.variables["zone"], "instances", r.variables["instance"]))
	}
	return vm.resource, nil
}

func (s *Server) list(r *request) (any, error) {
	filter, err := parseFilter(r.query("filter"))
	if err != nil {
		return nil, err
	}
	var all []resource
	for _, name := range slices.Sorted(maps.Keys(s.vms)) {
		vm := s.vms[name]
		if vm.zone == r.variables["zone"] && s.visible(vm.zone, vm.Name) != nil && vm.matches(filter) {
			all = append(all, vm.resource)
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
	vm := s.visible(zone, name)
	switch {
	case vm == nil:
		return nil, notFound(path(zone, "instances", name))
	case vm.deleting:
		return nil, &failure{400, "resourceNotReady", fmt.Sprintf("The resource '%s' is not ready", path(zone, "instances", name))}
	}
	vm.deleting, vm.Status = true, "STOPPING"
	op := s.begin(zone, "delete", name, s.DeleteTime)
	op.target = vm.ID
	op.finish = func(time.Time) { s.remove(vm) }
	s.remember(r, op)
	return op.resource(), nil
}

// remove deletes a machine and its disks with autoDelete. mu must be locked.
func (s *Server) remove(vm *machine) {
	if s.vms[key(vm.zone, vm.Name)] != vm {
		return
	}
	delete(s.vms, key(vm.zone, vm.Name))
	s.deleted = append(s.deleted, vm.Name)
	for _, g := range s.groups {
		g.endpoints = slices.DeleteFunc(g.endpoints, func(e groupEndpoint) bool { return e.Instance == s.link(vm.zone, vm.Name) })
	}
	for _, d := range vm.Disks {
		if d.AutoDelete {
			delete(s.disks, d.Source)
		}
	}
}

// resource is a virtual machine in requests and responses.
type resource struct {
	Kind              string              `json:"kind,omitempty"`
	ID                string              `json:"id,omitempty"`
	Name              string              `json:"name"`
	Description       string              `json:"description,omitempty"`
	MachineType       string              `json:"machineType,omitempty"`
	Status            string              `json:"status,omitempty"`
	Zone              string              `json:"zone,omitempty"`
	CreationTimestamp string              `json:"creationTimestamp,omitempty"`
	Labels            map[string]string   `json:"labels,omitempty"`
	Metadata          *metadata           `json:"metadata,omitempty"`
	Tags              *tags               `json:"tags,omitempty"`
	Disks             []*disk             `json:"disks,omitempty"`
	NetworkInterfaces []*networkInterface `json:"networkInterfaces,omitempty"`
	ServiceAccounts   []map[string]any    `json:"serviceAccounts,omitempty"`
	Scheduling        *scheduling         `json:"scheduling,omitempty"`
}

type metadata struct {
	Items []struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	} `json:"items"`
}

type tags struct {
	Items []string `json:"items"`
}

type disk struct {
	Boot             bool        `json:"boot,omitempty"`
	AutoDelete       bool        `json:"autoDelete,omitempty"`
	Source           string      `json:"source,omitempty"`
	InitializeParams *diskParams `json:"initializeParams,omitempty"`
}

type diskParams struct {
	SourceImage string            `json:"sourceImage,omitempty"`
	DiskType    string            `json:"diskType,omitempty"`
	DiskSizeGB  string            `json:"diskSizeGb,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
}

type networkInterface struct {
	Name          string           `json:"name,omitempty"`
	Fingerprint   string           `json:"fingerprint,omitempty"`
	AliasIPRanges []aliasRange     `json:"aliasIpRanges,omitempty"`
	Subnetwork    string           `json:"subnetwork,omitempty"`
	NetworkIP     string           `json:"networkIP,omitempty"`
	IPv6Address   string           `json:"ipv6Address,omitempty"`
	StackType     string           `json:"stackType,omitempty"`
	AccessConfigs []map[string]any `json:"accessConfigs,omitempty"`
}

type scheduling struct {
	ProvisioningModel         string `json:"provisioningModel,omitempty"`
	InstanceTerminationAction string `json:"instanceTerminationAction,omitempty"`
	OnHostMaintenance         string `json:"onHostMaintenance,omitempty"`
	AutomaticRestart          *bool  `json:"automaticRestart,omitempty"`
}
