// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"slices"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// wake returns when something falls due next, so that a group needs one timer.
// What has fallen due and could not be done waits for a change, not for a time.
func (p *planner) wake() time.Time {
	var next time.Time
	at := func(due time.Time) {
		if due.After(p.now) && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	age := func(i *instance.Instance, age time.Duration) {
		if age > 0 {
			at(i.CreatedAt.Add(age))
		}
	}
	for n := range p.instances {
		if i := &p.instances[n]; i.Drain != nil && i.DeleteReason == "" {
			at(i.Drain.DeleteAt)
		}
	}
	for _, i := range p.staying {
		age(i, p.expiry.EligibleAge)
		age(i, p.expiry.ForcedAge)
	}
	for _, i := range p.onDemand {
		age(i, p.expiry.OnDemandAge)
	}
	for _, i := range slices.Concat(p.staying, p.onDemand) {
		if unordered(i) {
			age(i, p.registrationTimeout)
		}
	}
	return next
}
