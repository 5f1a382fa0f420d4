// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package elbtest

import (
	"cmp"
	"encoding/xml"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// group is a target group.
type group struct {
	port    int
	targets map[target]string
}

// target identifies a target. Port 0 in a call means the port of the target group.
type target struct {
	id   string
	port int
}

// States of targets.
const (
	Initial  = "initial"
	Healthy  = "healthy"
	Draining = "draining"
	// Unknown is a state that responses leave out.
	Unknown = "unknown"
)

// AddGroup adds a target group with the port of its targets.
func (s *Server) AddGroup(arn string, port int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[arn] = &group{port: port, targets: map[target]string{}}
}

// SetInstance makes an instance exist that runs, or does not.
func (s *Server) SetInstance(id string, runs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances[id] = runs
}

// Terminate deletes an instance. Target groups do not show it any more.
func (s *Server) Terminate(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.instances, id)
	for _, group := range s.groups {
		maps.DeleteFunc(group.targets, func(t target, _ string) bool { return t.id == id })
	}
}

// Put sets the state of a target as another client does, or removes it if the state is "".
func (s *Server) Put(arn, id string, port int, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[arn].targets[target{id, port}] = state
	if state == "" {
		delete(s.groups[arn].targets, target{id, port})
	}
}

// States returns the states of the ports of an instance in a target group.
func (s *Server) States(arn, id string) map[int]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	states := map[int]string{}
	for t, state := range s.groups[arn].targets {
		if t.id == id {
			states[t.port] = state
		}
	}
	return states
}

// EndDelays ends the deregistration delay of all targets.
func (s *Server) EndDelays() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, group := range s.groups {
		maps.DeleteFunc(group.targets, func(_ target, state string) bool { return state == Draining })
	}
}

// key returns the target of a call. mu must be locked.
func (g *group) key(t target) target {
	if t.port == 0 {
		t.port = g.port
	}
	return t
}

var instanceIDs = regexp.MustCompile(`^i-([0-9a-f]{8}|[0-9a-f]{17})$`)

func (s *Server) registerTargets(g *group, targets []target) (any, error) {
	var missing, stopped []string
	for _, t := range targets {
		switch runs, exists := s.instances[t.id]; {
		case !instanceIDs.MatchString(t.id):
			return nil, refuse("ValidationError", "Instance ID '%s' is not valid", t.id)
		case !exists:
			missing = append(missing, t.id)
		case !runs:
			stopped = append(stopped, t.id)
		}
	}
	switch {
	case len(missing) > 0:
		return nil, refuse("InvalidTarget", "The following targets are not valid instances: '%s'", strings.Join(missing, "', '"))
	case len(stopped) > 0:
		return nil, refuse("InvalidTarget", "The following targets are not in a running state and cannot be registered: '%s'", strings.Join(stopped, "', '"))
	}
	for _, t := range targets {
		if state := g.targets[g.key(t)]; state == "" || state == Draining {
			g.targets[g.key(t)] = Initial
		}
	}
	return registerResult{}, nil
}

func (s *Server) deregisterTargets(g *group, targets []target) (any, error) {
	var missing []string
	for _, t := range targets {
		if _, exists := s.instances[t.id]; !exists {
			missing = append(missing, t.id)
		}
	}
	if len(missing) > 0 {
		return nil, refuse("InvalidTarget", "The following targets are not valid instances: '%s'", strings.Join(missing, "', '"))
	}
	for _, t := range targets {
		if _, found := g.targets[g.key(t)]; found {
			g.targets[g.key(t)] = Draining
		}
	}
	return deregisterResult{}, nil
}

func (s *Server) describeTargetHealth(g *group, targets []target) (any, error) {
	if len(targets) > 0 {
		return nil, refuse("ValidationError", "this server lists all targets only")
	}
	var result describeResult
	keys := slices.SortedFunc(maps.Keys(g.targets), func(a, b target) int {
		return cmp.Or(strings.Compare(a.id, b.id), a.port-b.port)
	})
	for _, t := range keys {
		item := healthItem{ID: t.id, Port: t.port, State: g.targets[t]}
		switch item.State {
		case Draining:
			item.Reason = "Target.DeregistrationInProgress"
		case Initial:
			item.Reason = "Elb.RegistrationInProgress"
		case Unknown:
			item.State = ""
		}
		result.Targets = append(result.Targets, item)
	}
	return result, nil
}

// The results of calls, as they are in XML.

type registerResult struct {
	XMLName xml.Name `xml:"RegisterTargetsResult"`
}

type deregisterResult struct {
	XMLName xml.Name `xml:"DeregisterTargetsResult"`
}

type describeResult struct {
	XMLName xml.Name     `xml:"DescribeTargetHealthResult"`
	Targets []healthItem `xml:"TargetHealthDescriptions>member"`
}

type healthItem struct {
	ID     string `xml:"Target>Id"`
	Port   int    `xml:"Target>Port"`
	State  string `xml:"TargetHealth>State,omitempty"`
	Reason string `xml:"TargetHealth>Reason,omitempty"`
}
