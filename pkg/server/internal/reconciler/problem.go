// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import "nstance.dev/operator/pkg/server/instance"

// problem is a reason to replace a staying managed instance. Of surplus
// instances, those with the lowest value are deleted first.
type problem int

const (
	// candidate: an operator has requested its removal. This matters only for
	// surplus instances.
	candidate problem = iota
	// down: nothing runs on it.
	down
	// abandoned: its agent is still awaited, and it was created with another
	// configuration, which may be why.
	abandoned
	// overdue: it has reached the forced age.
	overdue
	// impaired: it runs, but is unhealthy.
	impaired
	// drifted: it was created with another configuration.
	drifted
	// eligible: it has reached the eligible age.
	eligible
	// uncreated: it does not exist at the provider yet, or its agent is still
	// awaited. Without other problems it is deleted before the existing ones,
	// because that costs nothing.
	uncreated
	noProblem
)

// surplusProblemOf is problemOf for surplus instances. For deletion candidates
// other problems do not matter, because they are not replaced.
func (p *planner) surplusProblemOf(i *instance.Instance) problem {
	if p.removeFirst[i.ID] {
		return candidate
	}
	return p.problemOf(i)
}

// problemOf returns the worst problem of an instance.
func (p *planner) problemOf(i *instance.Instance) problem {
	// The configuration of an instance without a hash is unknown.
	outdated := p.infraConfigHash != "" && i.InfraConfigHash != p.infraConfigHash
	switch {
	case i.Down():
		return down
	case outdated && isComingUp(i):
		return abandoned
	case p.reachedAge(i, p.expiry.ForcedAge):
		return overdue
	case i.State == instance.Impaired:
		return impaired
	case outdated:
		return drifted
	case p.reachedAge(i, p.expiry.EligibleAge):
		return eligible
	case isUncreated(i) || isComingUp(i):
		return uncreated
	default:
		return noProblem
	}
}

// reason returns the reason for deleting an instance with this problem.
func (p problem) reason() string {
	switch p {
	case down, impaired:
		return instance.ReasonUnhealthy
	case overdue, eligible:
		return instance.ReasonExpired
	case drifted, abandoned:
		return instance.ReasonConfigDrift
	default:
		return instance.ReasonScaleDown
	}
}

// urgent reports whether an instance with this problem is deleted regardless of
// other deletions in its group.
func (p problem) urgent() bool {
	return p <= impaired || p == uncreated
}
