// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// maxInterfaces is how many network interfaces an instance may have.
const maxInterfaces = 3

// networkInterface is a network interface that was not created by a launch.
type networkInterface struct {
	id, zone string
	tags     map[string]string
	token    string
	// addresses are the private addresses, IPv4 or IPv6.
	addresses []string
	// attachments are all attachments so far, in order.
	attachments []*attachment
	// delay is how many reads the next attachment takes.
	delay int
	// sticks is true if detachments without force do not end.
	sticks bool
}

// attachment is an attachment of a network interface to an instance.
type attachment struct {
	id, instance string
	index        int
	since        time.Time
	// reads is how many reads it still takes.
	reads int
	// detaching is when the detachment was requested, or zero. stuck is true if the detachment
	// does not end without force.
	detaching time.Time
	stuck     bool
	// hangs is true if the attachment does not end, because the index is spoiled.
	hangs bool
}

// slot is a device index of an instance.
type slot struct {
	instance string
	index    int
}

// status returns the state of an attachment, "" if it does not exist at that time.
func (a *attachment) status(s *Server, at time.Time) string {
	switch {
	case at.Before(a.since):
		return ""
	case !a.detaching.IsZero() && !at.Before(a.detaching) && (a.stuck || at.Before(a.detaching.Add(s.DetachTime))):
		return "detaching"
	case !a.detaching.IsZero() && !at.Before(a.detaching):
		return ""
	case a.hangs || a.reads > 0 || at.Before(a.since.Add(s.AttachTime)):
		return "attaching"
	}
	return "attached"
}

// attachment returns the attachment at a time, or nil.
func (n *networkInterface) attachment(s *Server, at time.Time) *attachment {
	for _, attached := range n.attachments {
		if attached.status(s, at) != "" {
			return attached
		}
	}
	return nil
}

// AddInterface adds a network interface with private addresses.
func (s *Server) AddInterface(id, zone string, addresses ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interfaces[id] = &networkInterface{id: id, zone: zone, addresses: addresses}
}

// AddInstance adds a running instance in a subnet, such as the instance of a server.
func (s *Server) AddInstance(id, subnet string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances[id] = &Instance{
		ID: id, Type: "m7i.large", Subnet: subnet, Zone: s.subnets[subnet].zone, Market: "on-demand",
		Tags: map[string]string{}, Params: map[string]string{}, launched: time.Now().Add(-time.Hour), address: "10.255.0.1",
	}
}

// AttachPrimary attaches a network interface as the primary interface of an instance.
func (s *Server) AttachPrimary(id, instanceID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	nic := s.interfaces[id]
	nic.attachments = append(nic.attachments, &attachment{id: "eni-attach-00000000", instance: instanceID, since: time.Now().Add(-time.Hour)})
}

// Owner returns the instance to which a network interface is attached. It returns "" if it is
// not attached, or if an attachment or detachment is in progress.
func (s *Server) Owner(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if a := s.interfaces[id].attachment(s, now); a != nil && a.status(s, now) == "attached" {
		return a.instance
	}
	return ""
}

// DelayAttach makes the next attachment of a network interface take a number of reads,
// which show it as in use.
func (s *Server) DelayAttach(id string, reads int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interfaces[id].delay = reads
}

// StickDetach makes detachments of a network interface without force never end, as if the
// operating system of the instance did not respond.
func (s *Server) StickDetach(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interfaces[id].sticks = true
}

// DelayInterfaces makes reads of network interfaces show them as they were some time ago.
func (s *Server) DelayInterfaces(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interfaceDelay = d
}

// PauseChange calls do once, before the next call that attaches or detaches a network
// interface has its effect.
func (s *Server) PauseChange(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pausing = do
}

// pause calls what PauseChange has set. mu must not be locked.
func (s *Server) pause(action string) {
	if action != "AttachNetworkInterface" && action != "DetachNetworkInterface" {
		return
	}
	s.mu.Lock()
	do := s.pausing
	s.pausing = nil
	s.mu.Unlock()
	if do != nil {
		do()
	}
}

// Forced returns how many detachments with force there were since the last time.
func (s *Server) Forced() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	forced := s.forced
	s.forced = 0
	return forced
}

// InterfaceChanges returns how many times an interface was attached or detached since the
// last time.
func (s *Server) InterfaceChanges() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	changes := s.interfaceChanges
	s.interfaceChanges = 0
	return changes
}

func (s *Server) describeNetworkInterfaces(p params) (any, error) {
	ids := p.list("NetworkInterfaceId")
	if len(ids) == 0 {
		var err error
		if ids, err = s.interfacesWithTags(p); err != nil {
			return nil, err
		}
	}
	at := time.Now().Add(-s.interfaceDelay)
	var result networkInterfaceResult
	for _, id := range ids {
		nic, found := s.interfaces[id]
		if !found {
			return nil, refuse("InvalidNetworkInterfaceID.NotFound", "The networkInterface ID '%s' does not exist", id)
		}
		item := networkInterfaceItem{ID: id, Zone: nic.zone, Status: "available"}
		for _, address := range nic.addresses {
			if slices.Contains([]byte(address), ':') {
				item.IPv6 = append(item.IPv6, ipv6Item{address})
			} else {
				item.Addresses = append(item.Addresses, privateItem{address})
			}
		}
		if a := nic.attachment(s, at); a != nil {
			a.reads = max(0, a.reads-1)
			item.Status = "in-use"
			item.Attachment = &attachmentItem{ID: a.id, InstanceID: a.instance, Index: a.index, Status: a.status(s, at)}
		}
		result.Interfaces = append(result.Interfaces, item)
	}
	return result, nil
}

// indexes returns the device indexes that an instance uses. mu must be locked.
func (s *Server) indexes(instanceID string) map[int]*attachment {
	used := map[int]*attachment{0: nil}
	now := time.Now()
	for _, nic := range s.interfaces {
		if a := nic.attachment(s, now); a != nil && a.instance == instanceID {
			used[a.index] = a
		}
	}
	return used
}

func (s *Server) attachNetworkInterface(p params) (any, error) {
	id, instanceID := p.get("NetworkInterfaceId"), p.get("InstanceId")
	nic, found := s.interfaces[id]
	if !found {
		return nil, refuse("InvalidNetworkInterfaceID.NotFound", "The networkInterface ID '%s' does not exist", id)
	}
	all, err := s.byID([]string{instanceID})
	if err != nil {
		return nil, err
	}
	index, err := strconv.Atoi(p.get("DeviceIndex"))
	if err != nil || index < 1 {
		return nil, refuse("InvalidParameterValue", "Invalid value '%s' for deviceIndex.", p.get("DeviceIndex"))
	}
	now := time.Now()
	_, used := s.indexes(instanceID)[index]
	switch state := all[0].state(s, now).name; {
	case state != "running" && state != "stopped":
		return nil, refuse("IncorrectState", "Instance '%s' is not 'running' or 'stopped'.", instanceID)
	case all[0].Zone != nic.zone:
		return nil, refuse("InvalidParameterCombination", "You may not attach a network interface to an instance if they are not in the same availability zone")
	case nic.attachment(s, now) != nil:
		return nil, refuse("InvalidNetworkInterface.InUse", "Interface: [%s] in use.", id)
	case used:
		return nil, refuse("InvalidParameterValue", "Instance '%s' already has an interface attached at device index '%d'.", instanceID, index)
	case len(s.indexes(instanceID)) >= maxInterfaces:
		return nil, refuse("AttachmentLimitExceeded", "Interface count %d exceeds the limit for %s", maxInterfaces+1, all[0].Type)
	}
	s.attachmentSeq++
	a := &attachment{
		id: fmt.Sprintf("eni-attach-%017x", s.attachmentSeq), instance: instanceID, index: index, since: now, reads: nic.delay,
		hangs: s.spoiled[slot{instanceID, index}],
	}
	nic.delay = 0
	nic.attachments = append(nic.attachments, a)
	s.interfaceChanges++
	return attachResult{AttachmentID: a.id}, nil
}

func (s *Server) detachNetworkInterface(p params) (any, error) {
	now := time.Now()
	for _, nic := range s.interfaces {
		a := nic.attachment(s, now)
		if a == nil || a.id != p.get("AttachmentId") {
			continue
		}
		force := p.get("Force") == "true"
		switch {
		case a.index == 0:
			return nil, refuse("OperationNotPermitted", "The network interface at device index 0 cannot be detached.")
		case !a.detaching.IsZero() && !force:
			return nil, refuse("IncorrectState", "The attachment '%s' is being detached.", a.id)
		}
		if a.detaching.IsZero() || a.stuck {
			a.detaching, a.stuck = now, nic.sticks && !force
		}
		if force {
			// Until the instance is stopped and started, it may be impossible to attach an interface
			// to the same index
			// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DetachNetworkInterface.html).
			s.spoiled[slot{a.instance, a.index}] = !s.HarmlessForce
			s.forced++
		}
		s.interfaceChanges++
		return detachResult{Return: true}, nil
	}
	return nil, refuse("InvalidAttachmentID.NotFound", "The attachment ID '%s' does not exist.", p.get("AttachmentId"))
}

// attachedInterfaces returns the network interfaces of an instance as reads show them,
// without the interface of its launch. mu must be locked.
func (s *Server) attachedInterfaces(instanceID string, at time.Time) []interfaceItem {
	var all []interfaceItem
	for _, nic := range s.interfaces {
		if a := nic.attachment(s, at); a != nil && a.instance == instanceID && a.index > 0 {
			all = append(all, interfaceItem{ID: nic.id, Address: nic.addresses[0], Attachment: &attachmentItem{ID: a.id, Index: a.index, Status: a.status(s, at)}})
		}
	}
	slices.SortFunc(all, func(a, b interfaceItem) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// The results of calls, as they are in XML.

type networkInterfaceResult struct {
	Interfaces []networkInterfaceItem `xml:"networkInterfaceSet>item"`
}

type networkInterfaceItem struct {
	ID         string          `xml:"networkInterfaceId"`
	Zone       string          `xml:"availabilityZone"`
	Status     string          `xml:"status"`
	Attachment *attachmentItem `xml:"attachment"`
	Addresses  []privateItem   `xml:"privateIpAddressesSet>item"`
	IPv6       []ipv6Item      `xml:"ipv6AddressesSet>item"`
}

type privateItem struct {
	Address string `xml:"privateIpAddress"`
}

type attachmentItem struct {
	ID         string `xml:"attachmentId"`
	InstanceID string `xml:"instanceId,omitempty"`
	Index      int    `xml:"deviceIndex"`
	Status     string `xml:"status"`
}

type attachResult struct {
	AttachmentID string `xml:"attachmentId"`
}

type detachResult struct {
	Return bool `xml:"return"`
}
