// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// SecurityGroup exists.
	SecurityGroup = "sg-0123456789abcdef0"
	// KeyName exists.
	KeyName = "admin"
	// shownFor is how long an instance that was terminated is shown.
	shownFor = time.Hour
)

// Instance is an instance that was launched.
type Instance struct {
	ID, Type, Subnet, Zone, Market string
	Tags                           map[string]string
	// Tagged are the kinds of resources that were tagged.
	Tagged   []string
	Userdata []byte
	// Params are the parameters of the call that has launched it.
	Params map[string]string

	address            string
	ipv6               int
	launched, stopping time.Time
	stopped            bool
	impaired           string
	protected          bool
	failure            *failure
	reason             failure
}

// status is the state of an instance at some time.
type status struct {
	name   string
	code   int
	reason failure
}

// state returns the state of an instance.
func (i *Instance) state(s *Server, now time.Time) status {
	switch age := now.Sub(i.launched); {
	case i.failure != nil && age >= s.BootTime/2:
		return status{"terminated", 48, *i.failure}
	case !i.stopping.IsZero() && now.Sub(i.stopping) < s.StopTime:
		return status{"shutting-down", 32, i.reason}
	case !i.stopping.IsZero():
		return status{"terminated", 48, i.reason}
	case age < s.BootTime:
		return status{"pending", 0, failure{}}
	case i.stopped:
		return status{"stopped", 80, failure{"Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown"}}
	default:
		return status{"running", 16, failure{}}
	}
}

// settle forgets the instances that were terminated long ago. mu must be locked.
func (s *Server) settle(now time.Time) {
	maps.DeleteFunc(s.instances, func(_ string, i *Instance) bool {
		ended := i.stopping
		if i.failure != nil {
			ended = i.launched
		}
		return !ended.IsZero() && now.Sub(ended) > shownFor
	})
}

// visible returns an instance that reads show. mu must be locked.
func (s *Server) visible(id string, now time.Time) (*Instance, bool) {
	i, exists := s.instances[id]
	return i, exists && now.Sub(i.launched) >= s.visibility
}

var instanceIDs = regexp.MustCompile(`^i-([0-9a-f]{8}|[0-9a-f]{17})$`)

// byID returns the instances with ids, or refuses the call if one does not exist.
func (s *Server) byID(ids []string) ([]*Instance, error) {
	var all []*Instance
	var missing []string
	for _, id := range ids {
		if !instanceIDs.MatchString(id) {
			return nil, refuse("InvalidInstanceID.Malformed", "Invalid id: %q", id)
		}
		i, exists := s.visible(id, time.Now())
		if !exists {
			missing = append(missing, id)
			continue
		}
		all = append(all, i)
	}
	switch len(missing) {
	case 0:
		return all, nil
	case 1:
		return nil, refuse("InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", missing[0])
	default:
		return nil, refuse("InvalidInstanceID.NotFound", "The instance IDs '%s' do not exist", strings.Join(missing, ", "))
	}
}

func (s *Server) describeInstances(p params) (any, error) {
	now := time.Now()
	ids := p.list("InstanceId")
	if len(ids) > 0 && p.has("MaxResults") {
		return nil, refuse("InvalidParameterCombination", "The parameter instancesSet cannot be used with the parameter maxResults")
	}
	var all []*Instance
	if len(ids) > 0 {
		var err error
		if all, err = s.byID(ids); err != nil {
			return nil, err
		}
	} else {
		for id := range s.instances {
			if i, visible := s.visible(id, now); visible {
				all = append(all, i)
			}
		}
	}
	var matching []string
	for _, i := range all {
		matches, err := p.matches(func(name string) ([]string, bool) { return i.property(s, name, now) })
		if err != nil {
			return nil, err
		}
		if matches {
			matching = append(matching, i.ID)
		}
	}
	if len(all) == 0 {
		if _, err := p.matches(func(name string) ([]string, bool) { return (&Instance{}).property(s, name, now) }); err != nil {
			return nil, err
		}
	}
	slices.Sort(matching)
	part, next, err := s.page(p, matching)
	if err != nil {
		return nil, err
	}
	result := describeResult{NextToken: next}
	for _, id := range part {
		result.Reservations = append(result.Reservations, reservationItem{ReservationID: "r-" + id[2:], OwnerID: owner, Instances: []instanceItem{s.describe(s.instances[id], now)}})
	}
	return result, nil
}

// property returns the value that a filter compares.
func (i *Instance) property(s *Server, name string, now time.Time) ([]string, bool) {
	if key, is := strings.CutPrefix(name, "tag:"); is {
		value, has := i.Tags[key]
		if !has {
			return nil, true
		}
		return []string{value}, true
	}
	switch name {
	case "tag-key":
		return slices.Collect(maps.Keys(i.Tags)), true
	case "instance-id":
		return []string{i.ID}, true
	case "instance-state-name":
		return []string{i.state(s, now).name}, true
	case "subnet-id":
		return []string{i.Subnet}, true
	case "client-token":
		return []string{i.Params["ClientToken"]}, true
	}
	return nil, false
}

func (s *Server) terminateInstances(p params) (any, error) {
	ids := p.list("InstanceId")
	if len(ids) == 0 {
		return nil, refuse("MissingParameter", "The request must contain the parameter InstanceId")
	}
	all, err := s.byID(ids)
	if err != nil {
		return nil, err
	}
	for _, i := range all {
		if i.protected {
			return nil, refuse("OperationNotPermitted", "The instance '%s' may not be terminated. Modify its 'disableApiTermination' instance attribute and try again.", i.ID)
		}
	}
	now := time.Now()
	var result terminateResult
	for _, i := range all {
		before := i.state(s, now)
		if i.stopping.IsZero() && i.failure == nil {
			i.stopping, i.reason = now, failure{"Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown"}
			s.terminated = append(s.terminated, i.ID)
		}
		after := i.state(s, now)
		result.Instances = append(result.Instances, changeItem{ID: i.ID, Current: stateItem{after.code, after.name}, Previous: stateItem{before.code, before.name}})
	}
	return result, nil
}

func (s *Server) describeInstanceStatus(p params) (any, error) {
	ids := p.list("InstanceId")
	if _, err := s.byID(ids); err != nil {
		return nil, err
	}
	var matching []string
	for id, i := range s.instances {
		if i.state(s, time.Now()).name != "running" || len(ids) > 0 && !slices.Contains(ids, id) {
			continue
		}
		matches, err := p.matches(func(name string) ([]string, bool) {
			switch name {
			case "instance-status.status", "system-status.status":
				return []string{i.check(name)}, true
			}
			return nil, false
		})
		if err != nil {
			return nil, err
		}
		if matches {
			matching = append(matching, id)
		}
	}
	slices.Sort(matching)
	part, next, err := s.page(p, matching)
	if err != nil {
		return nil, err
	}
	result := statusResult{NextToken: next}
	for _, id := range part {
		i := s.instances[id]
		result.Statuses = append(result.Statuses, statusItem{
			ID: id, Zone: i.Zone, State: stateItem{16, "running"}, Instance: i.check("instance-status.status"), System: i.check("system-status.status"),
		})
	}
	return result, nil
}

// check returns the result of a status check.
func (i *Instance) check(filter string) string {
	if i.impaired == filter {
		return "impaired"
	}
	return "ok"
}

// describe returns an instance as reads show it. mu must be locked.
func (s *Server) describe(i *Instance, now time.Time) instanceItem {
	state := i.state(s, now)
	item := instanceItem{
		ID: i.ID, Type: i.Type, SubnetID: i.Subnet, State: stateItem{state.code, state.name}, LaunchTime: i.launched.UTC().Format("2006-01-02T15:04:05.000Z"),
		Zone: i.Zone, ClientToken: i.Params["ClientToken"],
	}
	if state.reason.code != "" {
		item.Reason = &reasonItem{state.reason.code, state.reason.message}
	}
	if i.Market == "spot" {
		item.Lifecycle = "spot"
	}
	for _, key := range slices.Sorted(maps.Keys(i.Tags)) {
		item.Tags = append(item.Tags, tagItem{key, i.Tags[key]})
	}
	if now.Sub(i.launched) < s.AddressDelay || state.name == "terminated" {
		return item
	}
	item.Address, item.DNSName = i.address, "ip-"+strings.ReplaceAll(i.address, ".", "-")+".ec2.internal"
	nic := interfaceItem{ID: "eni-" + i.ID[2:], Address: i.address}
	for n := range i.ipv6 {
		nic.IPv6 = append(nic.IPv6, ipv6Item{fmt.Sprintf("2001:db8::%s:%x", strings.ReplaceAll(i.address[3:], ".", ":"), n+1)})
	}
	nic.Attachment = &attachmentItem{ID: "eni-attach-" + i.ID[2:], Status: "attached"}
	item.Interfaces = append([]interfaceItem{nic}, s.attachedInterfaces(i.ID, now)...)
	return item
}
