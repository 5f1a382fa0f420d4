// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"slices"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// nextDeadline returns when the next action is due, so that a group needs one
// timer. An action that was due but not possible waits for a change, not for a
// time.
func (p *planner) nextDeadline() time.Time {
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
		switch {
		case isUncreated(i):
			age(i, p.registrationTimeout)
		case awaitsRegistration(i) && p.registrationTimeout > 0:
			at(i.Agent.Since.Add(p.registrationTimeout))
		}
	}
	for _, until := range p.deregisterUntil {
		at(until)
	}
	at(p.createAfter)
	return next
}
