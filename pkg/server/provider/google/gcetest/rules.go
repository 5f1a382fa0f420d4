// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcetest

import (
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Rules of Compute Engine that the discovery document does not have: for labels
// https://cloud.google.com/compute/docs/labeling-resources#requirements.
var (
	labelKey   = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	labelValue = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
)

const (
	maxLabels = 64
	// maxDescription is not documented.
	maxDescription = 2048
	// maxMetadataValue is in https://cloud.google.com/compute/docs/metadata/setting-custom-metadata#limitations.
	maxMetadataValue = 256 << 10
)

// ipv6Only is the stack type of a subnetwork, and of the interfaces that are connected to it. The
// default of an interface is IPv4 (the discovery document, NetworkInterface.stackType).
const ipv6Only = "IPV6_ONLY"

func checkLabels(field string, labels map[string]string) error {
	if len(labels) > maxLabels {
		return invalid("Invalid value for field '%s': %d labels, at most 64 are allowed", field, len(labels))
	}
	for key, value := range labels {
		if !labelKey.MatchString(key) || !labelValue.MatchString(value) {
			return invalid("Invalid value for field '%s': label %q: %q is not allowed", field, key, value)
		}
	}
	return nil
}

// checkRequestID refuses an id that is not a UUID
// (https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert).
func checkRequestID(text string) error {
	if text == "" {
		return nil
	}
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 || id == uuid.Nil {
		return invalid("Invalid value for field 'requestId': '%s'. Must be a UUID that is not zero.", text)
	}
	return nil
}

// checkBody refuses a machine that breaks a rule.
func (s *Server) checkBody(r *request, body *resource) error {
	zone := r.variables["zone"]
	if err := checkLabels("resource.labels", body.Labels); err != nil {
		return err
	}
	if len(body.Description) > maxDescription {
		return invalid("Invalid value for field 'resource.description': it has %d characters", len(body.Description))
	}
	kind, found := strings.CutPrefix(body.MachineType, "zones/"+zone+"/machineTypes/")
	if !found || !s.types[kind] {
		return invalid("Invalid value for field 'resource.machineType': '%s'. Machine type with name '%s' does not exist in zone '%s'.", body.MachineType, kind, zone)
	}
	keys := map[string]bool{}
	if body.Metadata != nil {
		for _, item := range body.Metadata.Items {
			if keys[item.Key] || len(item.Value) > maxMetadataValue {
				return invalid("Invalid value for field 'resource.metadata': key %s", item.Key)
			}
			keys[item.Key] = true
		}
	}
	if len(body.NetworkInterfaces) != 1 || s.subnetOf(body.NetworkInterfaces[0].Subnetwork) == nil {
		return invalid("Invalid value for field 'resource.networkInterfaces[0].subnetwork': The referenced subnetwork resource cannot be found.")
	}
	if nic := body.NetworkInterfaces[0]; s.subnetOf(nic.Subnetwork).ipv6Only != (nic.StackType == ipv6Only) {
		return invalid("Invalid value for field 'resource.networkInterfaces[0].stackType': '%s'. The subnetwork does not support it.", nic.StackType)
	}
	if err := checkScheduling(body.Scheduling); err != nil {
		return err
	}
	return s.checkDisks(r, body)
}

// checkScheduling refuses a spot machine that restarts or migrates, which is not documented.
func checkScheduling(scheduling *scheduling) error {
	if scheduling == nil || scheduling.ProvisioningModel != "SPOT" {
		return nil
	}
	if scheduling.OnHostMaintenance != "TERMINATE" || scheduling.AutomaticRestart == nil || *scheduling.AutomaticRestart {
		return invalid("Invalid value for field 'resource.scheduling': a spot machine must terminate on maintenance and not restart")
	}
	return nil
}

func (s *Server) checkDisks(r *request, body *resource) error {
	template := r.query("sourceInstanceTemplate")
	if template != "" && template != Template {
		return notFound("projects/" + Project + "/" + template)
	}
	if template != "" && len(body.Disks) == 0 {
		body.Disks = []*disk{{Boot: true, AutoDelete: true, InitializeParams: &diskParams{SourceImage: Image}}}
	}
	if len(body.Disks) == 0 || !body.Disks[0].Boot {
		return invalid("Invalid value for field 'resource.disks': the first disk must be a boot disk")
	}
	for _, disk := range body.Disks {
		if disk.InitializeParams == nil || disk.InitializeParams.SourceImage != Image {
			return notFound("an image of the request")
		}
		if err := checkLabels("resource.disks.initializeParams.labels", disk.InitializeParams.Labels); err != nil {
			return err
		}
		if kind := disk.InitializeParams.DiskType; kind != "" && !strings.HasPrefix(kind, "zones/"+r.variables["zone"]+"/diskTypes/pd-") {
			return invalid("Invalid value for field 'resource.disks.initializeParams.diskType': '%s'", kind)
		}
	}
	return nil
}

// Deny takes away the permission to use a resource: an image, a subnetwork, or the project for
// instances. The service responds with the same text
// (https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation).
func (s *Server) Deny(resource, permission string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied[resource] = permission
}

// ExternalIPConstraint is a constraint that forbids external addresses
// (https://cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints).
const ExternalIPConstraint = "constraints/compute.vmExternalIpAccess"

// Constrain makes a constraint of the organization hold.
func (s *Server) Constrain(constraint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.constrained[constraint] = true
}

// checkAccess refuses a machine that uses a resource without permission, or breaks a constraint.
func (s *Server) checkAccess(body *resource, template string) error {
	used := []string{"projects/" + Project, template}
	for _, nic := range body.NetworkInterfaces {
		used = append(used, nic.Subnetwork)
		if len(nic.AccessConfigs) > 0 && s.constrained[ExternalIPConstraint] {
			return &failure{412, "conditionNotMet", "Constraint " + ExternalIPConstraint + " violated for project " + Project + "."}
		}
	}
	for _, disk := range body.Disks {
		if disk.InitializeParams != nil {
			used = append(used, disk.InitializeParams.SourceImage)
		}
	}
	for _, name := range used {
		if permission := s.denied[name]; permission != "" {
			return &failure{403, "forbidden", "Required '" + permission + "' permission for '" + name + "'"}
		}
	}
	return nil
}

// condition is a condition of a filter.
type condition struct {
	field, value string
	// not is true if the value must differ.
	not bool
}

var conditions = regexp.MustCompile(`^([A-Za-z]+(?:\.[a-z0-9_-]+)?) (=|!=) "([^"]*)"$`)

// parseFilter reads conditions that are connected by AND, each in parentheses unless there is
// only one (https://cloud.google.com/compute/docs/reference/rest/v1/instances/list).
func parseFilter(text string) ([]condition, error) {
	if text == "" {
		return nil, nil
	}
	parts := strings.Split(text, " AND ")
	var all []condition
	for _, part := range parts {
		inner := part
		if strings.HasPrefix(part, "(") && strings.HasSuffix(part, ")") {
			inner = part[1 : len(part)-1]
		} else if len(parts) > 1 {
			return nil, invalid("Invalid value for field 'filter': '%s'. Invalid list filter expression.", text)
		}
		match := conditions.FindStringSubmatch(inner)
		if match == nil {
			return nil, invalid("Invalid value for field 'filter': '%s'. Invalid list filter expression.", text)
		}
		all = append(all, condition{field: match[1], value: match[3], not: match[2] == "!="})
	}
	return all, nil
}

// page returns the part of a sorted list that a call requests, and the token of the next one.
func (s *Server) page(query url.Values, length int) (first, end int, next string, err error) {
	size := s.PageSize
	if text := query.Get("maxResults"); text != "" {
		most, err := strconv.Atoi(text)
		if err != nil || most > 500 {
			return 0, 0, "", invalid("Invalid value for field 'maxResults': '%s'", text)
		}
		size = min(size, most)
	}
	if token := query.Get("pageToken"); token != "" {
		if first, err = strconv.Atoi(strings.TrimPrefix(token, "page-")); err != nil || first > length {
			return 0, 0, "", invalid("Invalid value for field 'pageToken': '%s'", token)
		}
	}
	if end = min(length, first+size); end < length {
		next = "page-" + strconv.Itoa(end)
	}
	return first, end, next, nil
}
