// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package loadbalancers

import (
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provision"
)

// intent is what is wanted of an instance as a target of one load balancer.
type intent int

const (
	// keep leaves a target as it is.
	keep intent = iota
	// register makes the instance a target.
	register
	// deregister removes it.
	deregister
)

// intentOf returns what is wanted of an instance at a load balancer. wanted is true if the
// configuration has it there, and certain is false if that may be outdated.
//
// An instance is registered on a good report only. After that it stays a target as long as
// it exists: a load balancer has health checks of its own, and an instance that is really
// lost is drained. An instance that is missing may be missing by mistake.
func (s *Syncer) intentOf(i *instance.Instance, wanted, certain bool) intent {
	switch {
	case !i.DeletedAt.IsZero() || i.BeingDeleted():
		return deregister
	case !wanted && certain:
		return deregister
	case wanted && s.isGood(i):
		return register
	default:
		return keep
	}
}

// isGood reports whether an instance has reported that it is healthy since this server
// leads: its agent, or else its provider.
func (s *Syncer) isGood(i *instance.Instance) bool {
	if !i.Known || i.State != instance.Running || i.Agent.Notice != nil {
		return false
	}
	return !s.Agents || i.Agent.State == instance.AgentReporting
}

// neverReported reports whether an instance certainly was never registered, because it has
// never given a good report.
func (s *Syncer) neverReported(i *instance.Instance) bool {
	if s.Agents {
		return i.Registration == nil && !i.Adopted
	}
	return i.ProviderID == "" && !i.Found
}

// wantedBalancers returns the load balancers that an instance is to be registered with.
// certain is false if that may be outdated.
func (s *Syncer) wantedBalancers(i *instance.Instance) (keys map[string]bool, certain bool) {
	key := i.Key()
	group, found := s.Groups.Get(key)
	if !found {
		// An on-demand instance outlives its group.
		return nil, s.Groups.Deleted(key) && !i.OnDemand
	}
	effective, err := provision.Effective(s.Groups.Config(), group, &i.Record)
	if err != nil {
		// The template of an on-demand instance may not be configured any more.
		return nil, false
	}
	keys = map[string]bool{}
	for _, key := range effective.LoadBalancers {
		keys[key] = true
	}
	return keys, !s.Groups.Unconfirmed(key) && !i.Adopted
}
