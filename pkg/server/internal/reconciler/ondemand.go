// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"slices"

	"nstance.dev/operator/pkg/server/instance"
)

// deleteOnDemand deletes on-demand instances that are down, will be terminated by their
// provider, or have reached their age. They have no replacements, wait for nothing, and outlive their
// group. Only an uncreated one does not, because its group's settings are
// needed to create it.
func (p *planner) deleteOnDemand() {
	p.onDemand = slices.DeleteFunc(p.onDemand, func(i *instance.Instance) bool {
		switch {
		case i.Down():
			p.startDeletion(i, instance.ReasonUnhealthy)
		case i.Agent.Notice != nil:
			p.startDeletion(i, instance.ReasonSpot)
		case p.reachedAge(i, p.expiry.OnDemandAge):
			p.startDeletion(i, instance.ReasonExpired)
		case p.deleted && isUncreated(i):
			p.startDeletion(i, instance.ReasonUnregistered)
		default:
			return false
		}
		return true
	})
}
