// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test

import (
	"encoding/base64"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The calls that only questions make, which a check asks.

// createNetworkInterface creates an interface with an address of a subnet. The same token gives the
// same interface.
func (s *Server) createNetworkInterface(p params) (any, error) {
	subnet, found := s.subnets[p.get("SubnetId")]
	if !found {
		return nil, refuse("InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", p.get("SubnetId"))
	}
	tags := map[string]string{}
	for _, specification := range p.structures("TagSpecification") {
		if kind := specification.get("ResourceType"); kind != "network-interface" {
			return nil, refuse("InvalidParameterValue", "'%s' is not a valid taggable resource type for this operation.", kind)
		}
		for _, tag := range specification.structures("Tag") {
			tags[tag.get("Key")] = tag.get("Value")
		}
	}
	id := "eni-" + fmt.Sprintf("%017x", 1<<40+len(s.interfaces))
	for known := range s.interfaces {
		if token := p.get("ClientToken"); token != "" && s.interfaces[known].token == token {
			id = known
		}
	}
	if s.interfaces[id] == nil {
		s.interfaces[id] = &networkInterface{
			id: id, zone: subnet.zone, tags: tags, token: p.get("ClientToken"), addresses: []string{fmt.Sprintf("10.254.0.%d", len(s.interfaces)+1)},
		}
	}
	return createInterfaceResult{Interface: networkInterfaceItem{ID: id, Zone: subnet.zone, Status: "pending"}}, nil
}

func (s *Server) deleteNetworkInterface(p params) (any, error) {
	id := p.get("NetworkInterfaceId")
	nic, found := s.interfaces[id]
	switch {
	case !found:
		return nil, refuse("InvalidNetworkInterfaceID.NotFound", "The networkInterface ID '%s' does not exist", id)
	case nic.attachment(s, time.Now()) != nil:
		return nil, refuse("InvalidParameterValue", "Network interface '%s' is currently in use.", id)
	}
	delete(s.interfaces, id)
	return detachResult{Return: true}, nil
}

// interfacesWithTags returns the interfaces that match filters by tags. mu must be locked.
func (s *Server) interfacesWithTags(p params) ([]string, error) {
	if len(p.structures("Filter")) == 0 {
		return nil, refuse("MissingParameter", "this server lists network interfaces by id or by tags only")
	}
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(s.interfaces)) {
		matches, err := p.matches(func(name string) ([]string, bool) {
			key, isTag := strings.CutPrefix(name, "tag:")
			value, has := s.interfaces[id].tags[key]
			if !has {
				return nil, isTag
			}
			return []string{value}, isTag
		})
		if err != nil {
			return nil, err
		}
		if matches {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Interfaces returns the ids of the network interfaces, without the interfaces of launches.
func (s *Server) Interfaces() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.interfaces))
}

// toConsole is a line of a script that writes a text to the console.
var toConsole = regexp.MustCompile(`(?m)^echo '([^']*)' >/dev/console`)

// getConsoleOutput shows what the userdata has written to the console when the instance runs.
func (s *Server) getConsoleOutput(p params) (any, error) {
	all, err := s.byID([]string{p.get("InstanceId")})
	if err != nil {
		return nil, err
	}
	text := "Booting the kernel.\r\n"
	if all[0].state(s, time.Now()).name == "running" && !s.NoCloudInit {
		for _, match := range toConsole.FindAllSubmatch(all[0].Userdata, -1) {
			text += string(match[1]) + "\r\n"
		}
	}
	return consoleResult{InstanceID: all[0].ID, Output: base64.StdEncoding.EncodeToString([]byte(text))}, nil
}

type createInterfaceResult struct {
	Interface networkInterfaceItem `xml:"networkInterface"`
}

type consoleResult struct {
	InstanceID string `xml:"instanceId"`
	Output     string `xml:"output"`
}
