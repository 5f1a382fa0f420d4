// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test

import (
	"slices"
	"strings"
	"time"
)

// subnet is a subnet from AddSubnet.
type subnet struct {
	id, zone string
	size     int
	// ipv6Only is true if the subnet has no IPv4 addresses: then it reports that none is free.
	ipv6Only bool
	// exhausted is true if no address is free, whatever the subnet reports.
	exhausted bool
}

// Image is an image that instances are launched from.
type Image struct {
	ID, Owner, Name string
	// Arch is x86_64 or arm64.
	Arch string
	// Created is a time in the form of RFC 3339.
	Created string
}

// AddSubnet adds a subnet with a number of addresses.
func (s *Server) AddSubnet(id, zone string, addresses int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subnets[id] = &subnet{id: id, zone: zone, size: addresses}
}

// AddIPv6Subnet adds a subnet that has IPv6 addresses only
// (https://docs.aws.amazon.com/vpc/latest/userguide/configure-subnets.html#subnet-types).
func (s *Server) AddIPv6Subnet(id, zone string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subnets[id] = &subnet{id: id, zone: zone, ipv6Only: true}
}

// Exhaust makes a subnet have no free address, which it does not report.
func (s *Server) Exhaust(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subnets[id].exhausted = true
}

// AddImage adds an image.
func (s *Server) AddImage(image Image) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images[image.ID] = image
}

// AddType adds an instance type of an architecture, x86_64 or arm64.
func (s *Server) AddType(name, arch string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.types[name] = arch
}

// AddLaunchTemplate adds a launch template, by its id or name, that has an image.
func (s *Server) AddLaunchTemplate(idOrName, imageID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.templates[idOrName] = imageID
}

// free returns how many addresses of a subnet are free. mu must be locked.
func (s *Server) free(subnet *subnet) int {
	used := 0
	for _, i := range s.instances {
		if i.Subnet == subnet.id && i.state(s, time.Now()).name != "terminated" {
			used++
		}
	}
	return max(0, subnet.size-used)
}

func (s *Server) describeSubnets(p params) (any, error) {
	var result subnetResult
	for _, id := range p.list("SubnetId") {
		subnet, found := s.subnets[id]
		if !found {
			return nil, refuse("InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", id)
		}
		result.Subnets = append(result.Subnets, subnetItem{ID: id, Zone: subnet.zone, Free: s.free(subnet), State: "available", IPv6Native: subnet.ipv6Only})
	}
	return result, nil
}

func (s *Server) describeImages(p params) (any, error) {
	ids, owners := p.list("ImageId"), p.list("Owner")
	for _, id := range ids {
		if _, found := s.images[id]; !found {
			return nil, refuse("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", id)
		}
	}
	var result imageResult
	for id, image := range s.images {
		matches, err := p.matches(func(name string) ([]string, bool) {
			switch name {
			case "name":
				return []string{image.Name}, true
			case "architecture":
				return []string{image.Arch}, true
			case "state":
				return []string{"available"}, true
			}
			return nil, strings.HasPrefix(name, "tag:")
		})
		if err != nil {
			return nil, err
		}
		if matches && (len(ids) == 0 || slices.Contains(ids, id)) && (len(owners) == 0 || slices.Contains(owners, image.Owner)) {
			result.Images = append(result.Images, imageItem{ID: id, Owner: image.Owner, Name: image.Name, Arch: image.Arch, Created: image.Created, State: "available", RootDevice: "/dev/xvda"})
		}
	}
	return result, nil
}

// Made returns all instances that were ever launched.
func (s *Server) Made() []Made {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.made)
}

// Terminated returns the ids of all instances that TerminateInstances has terminated.
func (s *Server) Terminated() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.terminated)
}

// Existing returns the tags of the instances that were not terminated, in order.
func (s *Server) Existing() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, i := range s.instances {
		if state := i.state(s, time.Now()).name; state != "terminated" && state != "shutting-down" {
			all = append(all, i.Tags["nstance:instance-id"])
		}
	}
	slices.Sort(all)
	return all
}

// change changes the instances with a tag. mu must not be locked.
func (s *Server) change(tag string, change func(*Instance)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.instances {
		if i.Tags["nstance:instance-id"] == tag {
			change(i)
		}
	}
}

// Instance returns the instance with a tag, or nil.
func (s *Server) Instance(tag string) *Instance {
	var found *Instance
	s.change(tag, func(i *Instance) { found = i })
	return found
}

// Terminate terminates the instance with a tag as another client does.
func (s *Server) Terminate(tag string) {
	s.End(tag, "Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")
}

// End makes the instance with a tag terminated, with the code and the message of a state
// reason, which are empty if EC2 gives no reason.
func (s *Server) End(tag, code, message string) {
	s.change(tag, func(i *Instance) {
		i.stopping, i.reason = time.Now().Add(-s.StopTime), failure{code, message}
	})
}

// Forget makes EC2 forget the instance with a tag at once.
func (s *Server) Forget(tag string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, i := range s.instances {
		if i.Tags["nstance:instance-id"] == tag {
			delete(s.instances, id)
		}
	}
}

// Stop stops the instance with a tag.
func (s *Server) Stop(tag string) { s.change(tag, func(i *Instance) { i.stopped = true }) }

// Protect sets whether EC2 refuses to terminate the instance with a tag.
func (s *Server) Protect(tag string, protected bool) {
	s.change(tag, func(i *Instance) { i.protected = protected })
}

// Impair makes a status check of the instance with a tag fail: "instance-status.status" or
// "system-status.status". An empty text makes both checks succeed.
func (s *Server) Impair(tag, check string) { s.change(tag, func(i *Instance) { i.impaired = check }) }

// SetTag changes a tag of an instance, or deletes it if the value is empty.
func (s *Server) SetTag(tag, key, value string) {
	s.change(tag, func(i *Instance) {
		i.Tags[key] = value
		if value == "" {
			delete(i.Tags, key)
		}
	})
}

// Throttle refuses all calls for a time.
func (s *Server) Throttle(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.throttled = time.Now().Add(d)
}

// DelayVisibility hides instances for a time after their launch: they are not found, and
// cannot be terminated.
func (s *Server) DelayVisibility(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.visibility = d
}

// SetFull sets whether a zone lacks capacity for a type in a market, "on-demand" or "spot".
func (s *Server) SetFull(typeName, zone, market string, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full[typeName+"/"+zone+"/"+market] = full
}

// SetOffered sets whether a zone offers a type, in any market.
func (s *Server) SetOffered(typeName, zone string, offered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unoffered[typeName+"/"+zone] = !offered
}

// SetQuota limits the number of instances of a market that are not terminated. A negative
// number is no limit.
func (s *Server) SetQuota(market string, count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quotas[market] = count
	if count < 0 {
		delete(s.quotas, market)
	}
}

// failure is why an instance is terminated before it runs.
type failure struct{ code, message string }

// FailLaunches makes instances that are launched next terminate before they run.
func (s *Server) FailLaunches(times int, code, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = nil
	for range times {
		s.failures = append(s.failures, failure{code, message})
	}
}
