// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"slices"

	"nstance.dev/operator/pkg/server/instance"
)

// endOnDemand lets on-demand instances go that are gone or have reached their
// age. They are replaced by none, wait for none, and outlive their group. Only
// one that was never ordered does not: nobody knows any more how to make it.
func (p *planner) endOnDemand() {
	p.onDemand = slices.DeleteFunc(p.onDemand, func(i *instance.Instance) bool {
		switch {
		case i.Gone():
			p.dismiss(i, instance.ReasonUnhealthy)
		case p.aged(i, p.expiry.OnDemandAge):
			p.dismiss(i, instance.ReasonExpired)
		case p.deleted && unordered(i):
			p.dismiss(i, instance.ReasonUnregistered)
		default:
			return false
		}
		return true
	})
}
