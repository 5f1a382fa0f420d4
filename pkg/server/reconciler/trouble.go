// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import "nstance.dev/operator/pkg/server/instance"

// trouble is what is wrong with a managed instance that stays. Of too many
// instances those of the lowest go first.
type trouble int

const (
	// chosen: an operator wants it to go first. That is no trouble as long as
	// there are not too many.
	chosen trouble = iota
	// gone: nothing runs on it.
	gone
	// overdue: it has reached the forced age.
	overdue
	// impaired: it runs, and is not well.
	impaired
	// drifted: it was made with another configuration.
	drifted
	// eligible: it has reached the eligible age.
	eligible
	// unneeded: it has not been ordered yet. With nothing else wrong it goes
	// before the ones that are there, for there is nothing to end.
	unneeded
	noTrouble
)

// troubleOfSurplus is troubleOf for when there are too many instances. Chosen
// ones go whatever else is wrong with them: nobody takes their place.
func (p *planner) troubleOfSurplus(i *instance.Instance) trouble {
	if p.removeFirst[i.ID] {
		return chosen
	}
	return p.troubleOf(i)
}

// troubleOf returns the worst that is wrong with an instance.
func (p *planner) troubleOf(i *instance.Instance) trouble {
	switch {
	case i.Gone():
		return gone
	case p.aged(i, p.expiry.ForcedAge):
		return overdue
	case i.State == instance.Impaired:
		return impaired
	case p.infraConfigHash != "" && i.InfraConfigHash != p.infraConfigHash:
		// Nobody knows what an instance without a hash was made with.
		return drifted
	case p.aged(i, p.expiry.EligibleAge):
		return eligible
	case unordered(i):
		return unneeded
	default:
		return noTrouble
	}
}

// reason returns why an instance with this trouble goes.
func (t trouble) reason() string {
	switch t {
	case gone, impaired:
		return instance.ReasonUnhealthy
	case overdue, eligible:
		return instance.ReasonExpired
	case drifted:
		return instance.ReasonConfigDrift
	default:
		return instance.ReasonScaleDown
	}
}

// urgent tells whether an instance goes no matter what else goes on in its
// group.
func (t trouble) urgent() bool {
	return t <= impaired || t == unneeded
}
