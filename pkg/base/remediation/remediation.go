// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package remediation decides which instances of a pool are replaced because their Nodes are unhealthy
// (docs/reference.md#remediation). It is pure: the decision follows from what is observed now and from
// the instances that are being replaced already, so that another leader continues.
package remediation

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Policy is the policy of a pool.
type Policy struct {
	// Checks are the conditions of unhealthy Nodes.
	Checks []Check
	// StartupTimeout is for how long an instance may run without a Node, 0 for ever.
	StartupTimeout time.Duration
	// Limit is how many Nodes may be unhealthy while instances are replaced.
	Limit int
	// MaxInFlight is how many instances are replaced at once.
	MaxInFlight int
}

// Check is a condition that a Node may have for some time only.
type Check struct {
	Type, Status string
	Timeout      time.Duration
}

// Condition is a condition of a Node.
type Condition struct {
	Type, Status string
	// Since is when the condition got its status.
	Since time.Time
}

// Node is the Node of an instance.
type Node struct {
	Name       string
	Conditions []Condition
}

// Instance is an instance of the pool.
type Instance struct {
	Shard, ID string
	// Node is nil if the instance has no Node, or if it is not certain which.
	Node *Node
	// NodelessSince is since when the instance runs without a Node. It is zero if it has a Node, or if
	// that is not certain.
	NodelessSince time.Time
	// Connected is set if the shard is connected. Otherwise the instance counts, and no request for it
	// changes.
	Connected bool
	// Named is set if the shard was asked to replace the instance.
	Named bool
	// Leaving is set if the instance is being drained or terminated.
	Leaving bool
}

// Replacement is an instance that is to be replaced.
type Replacement struct {
	Shard, ID string
	// Node is the name of the Node, empty if the instance has no Node.
	Node string
	// Problem is why the Node is unhealthy.
	Problem string
}

// Decision has the instances to replace, and why others are not.
type Decision struct {
	// Replace are the instances to replace on connected shards, also those that were named before. They
	// are sorted by shard and id.
	Replace []Replacement
	// Failing is how many Nodes have an unhealthy condition, for however long, or are missing for too
	// long.
	Failing int
	// InFlight is how many of them belong to instances that are being replaced, with Replace.
	InFlight int
	// TooMany is set if more Nodes are failing than the limit, and an instance is not replaced for that
	// reason. New Nodes are not Ready at first, which is no problem by itself.
	TooMany bool
	// Next is when another Node becomes unhealthy if nothing changes, zero for never.
	Next time.Time
}

// health is the health of an instance.
type health struct {
	Instance
	// failing is set if the instance counts as unhealthy, and problem is why.
	failing bool
	problem string
	// due is when the instance may be replaced, zero for never.
	due time.Time
}

// Decide returns which instances are to be replaced. An instance that was named stays named until its
// Node is healthy, or it is terminated: the shard has begun, and may have created a replacement.
func Decide(policy Policy, instances []Instance, now time.Time) Decision {
	var d Decision
	var candidates, replaced []health
	for _, instance := range instances {
		h := policy.healthOf(instance, now)
		if h.failing {
			d.Failing++
		}
		switch {
		case instance.Leaving:
			if h.failing {
				d.InFlight++
			}
		case instance.Named && (h.failing || instance.Node == nil):
			d.InFlight++
			replaced = append(replaced, h)
		case h.due.IsZero():
		case h.due.After(now):
			if d.Next.IsZero() || h.due.Before(d.Next) {
				d.Next = h.due
			}
		case instance.Connected:
			candidates = append(candidates, h)
		}
	}
	d.TooMany = d.Failing > policy.Limit && len(candidates) > 0
	// The Node that is unhealthy for longest is replaced first.
	slices.SortFunc(candidates, func(a, b health) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.ID, b.ID))
	})
	for _, candidate := range candidates {
		if d.TooMany || d.InFlight >= policy.MaxInFlight {
			break
		}
		d.InFlight++
		replaced = append(replaced, candidate)
	}
	for _, h := range replaced {
		if !h.Connected {
			continue
		}
		replacement := Replacement{Shard: h.Shard, ID: h.ID, Problem: h.problem}
		if h.Node != nil {
			replacement.Node = h.Node.Name
		}
		d.Replace = append(d.Replace, replacement)
	}
	slices.SortFunc(d.Replace, func(a, b Replacement) int {
		return cmp.Or(cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.ID, b.ID))
	})
	return d
}

// healthOf returns the health of an instance.
func (p *Policy) healthOf(instance Instance, now time.Time) health {
	h := health{Instance: instance}
	switch {
	case instance.Node != nil:
		h.problem, h.due = p.problem(instance.Node)
		h.failing = h.problem != ""
	case p.StartupTimeout > 0 && !instance.NodelessSince.IsZero():
		// New instances have no Node yet, and count only when they are late.
		h.problem, h.due = "it runs without a Node", instance.NodelessSince.Add(p.StartupTimeout)
		h.failing = !h.due.After(now)
	}
	return h
}

// problem returns which unhealthy condition a Node has, and when it has had it for too long. Of several
// conditions the first to be due counts.
func (p *Policy) problem(node *Node) (problem string, due time.Time) {
	for _, condition := range node.Conditions {
		for _, check := range p.Checks {
			if check.Type != condition.Type || check.Status != condition.Status {
				continue
			}
			if at := condition.Since.Add(check.Timeout); problem == "" || at.Before(due) {
				problem, due = fmt.Sprintf("%s is %s", condition.Type, condition.Status), at
			}
		}
	}
	return problem, due
}

// IsUnhealthy reports whether a Node has had an unhealthy condition for too long.
func (p *Policy) IsUnhealthy(node *Node, now time.Time) bool {
	problem, due := p.problem(node)
	return problem != "" && !due.After(now)
}
