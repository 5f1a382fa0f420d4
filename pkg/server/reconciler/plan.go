// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// state is all that a plan for a group is made from.
type state struct {
	// deleted is true for a group that is no more. Its size is 0 then.
	deleted bool
	// size is how many managed instances are wanted.
	size int
	// removeFirst are the ids of those that go first when there are too many. Ids
	// of no managed instance mean nothing.
	removeFirst map[string]bool
	// replaced is true when one of removeFirst was replaced before it was known
	// that it goes for good, and is gone.
	replaced bool
	// infraConfigHash is that of the group. When it is empty, none has drifted.
	infraConfigHash string
	// drainTimeout is how long instances may take to drain. Zero means that they
	// go at once.
	drainTimeout time.Duration
	expiry       config.Expiry
	// registrationTimeout is how long an instance may stay unknown to its
	// provider. Zero means for ever.
	registrationTimeout time.Duration
	// tried are when this server last ordered instances that the provider does
	// not know all the same, by instance id.
	tried map[string]time.Time
	// instances are all that have a record, on-demand ones too, in any order.
	instances []instance.Instance
	// providerIDs are those that the provider tells and no record has yet, by
	// instance id.
	providerIDs map[string]string
}

// verb is what is to be done.
type verb string

const (
	// confirm keeps the id that the provider gave an instance.
	confirm verb = "confirm"
	// forget removes the record of an instance that was ended and is gone.
	forget verb = "forget"
	// end tells the provider to end an instance.
	end verb = "end"
	// endAgain tells it once more: the first time may have been lost.
	endAgain verb = "end again"
	// drain begins the drain of an instance.
	drain verb = "drain"
	// create decides on a new instance and orders it.
	create verb = "create"
	// order asks the provider for an instance that was decided on before.
	order verb = "order"
)

// reasonScaleUp is why an instance is created that replaces none. Replacements
// are created for the reason that the replaced one goes for.
const reasonScaleUp = "scale-up"

// action is one step of a plan.
type action struct {
	verb verb
	// id is that of the instance. A new one has none yet.
	id string
	// reason is why to create, drain or end.
	reason string
	// providerID is what to confirm.
	providerID string
	// deleteAt is when a drain ends without an acknowledgement.
	deleteAt time.Time
}

// plan says what to do for a group, in the order of priority (server document),
// and when to look again if nothing happens before. A zero wake means never.
//
// A replacement is ordered first, and is one instance too many until that which
// it replaces goes. So the plan that creates it does not end the other: a later
// one does, which finds more instances than are wanted and lets the worst go. It
// needs to remember nothing, and so a server that takes over in between goes on
// where the other stopped.
func plan(s state, now time.Time) (actions []action, wake time.Time) {
	p := newPlanner(s, now)
	p.scaleDown()
	p.replaceOverdue()
	p.replaceUnhealthy()
	p.rotate()
	// What was decided on before comes before what scales up: an order that the
	// provider refuses leaves no more records behind with every attempt.
	p.order(p.staying)
	p.scaleUp()
	p.endOnDemand()
	p.order(p.onDemand)
	return p.actions, p.wake()
}

// planner makes one plan. Its counts are as if the actions so far were done.
type planner struct {
	state
	now     time.Time
	actions []action
	// staying are the managed instances that nobody has decided to end, oldest
	// first, without those created by this plan.
	staying []*instance.Instance
	// created is how many this plan creates.
	created int
	// total is how many managed instances have not been told to end, with those
	// that drain and those created.
	total int
	// leaving is how many managed instances are on their way out, and unhealthy
	// how many of them are to be replaced for being unhealthy.
	leaving, unhealthy int
	// onDemand are the on-demand instances that stay, oldest first.
	onDemand []*instance.Instance
}

// newPlanner finishes what was decided on before and sorts the instances by
// what they are.
func newPlanner(s state, now time.Time) *planner {
	p := &planner{state: s, now: now}
	sorted := make([]*instance.Instance, len(s.instances))
	for n := range s.instances {
		sorted[n] = &s.instances[n]
	}
	slices.SortFunc(sorted, oldestFirst)
	for _, i := range sorted {
		// Ending it may be what is left to do.
		ended := p.complete(i)
		switch leaves := ended || i.Leaving(); {
		case i.OnDemand && !leaves:
			p.onDemand = append(p.onDemand, i)
		case i.OnDemand:
		case leaves:
			p.leaving++
			if p.removeFirst[i.ID] {
				p.replaced = p.replaced || isReplaced(i)
			} else if leavesUnhealthy(i) {
				p.unhealthy++
			}
			// One that ends by itself is as good as gone.
			if !ended && i.State != instance.Terminating {
				p.total++
			}
		default:
			// One that is not well may have its replacement already: what is known
			// of a drain may be lost, and before it begins there is none.
			p.replaced = p.replaced || p.removeFirst[i.ID] && p.troubleOf(i) < unneeded
			p.staying = append(p.staying, i)
			p.total++
		}
	}
	return p
}

// complete does the next step of what was decided on before. It returns whether
// the instance has been told to end.
func (p *planner) complete(i *instance.Instance) (ended bool) {
	if i.DeleteReason != "" && !i.Known {
		p.do(action{verb: forget, id: i.ID})
		return true
	}
	if providerID := p.providerIDs[i.ID]; providerID != "" {
		p.do(action{verb: confirm, id: i.ID, providerID: providerID})
	}
	switch {
	case i.DeleteReason != "":
		if i.State != instance.Terminating {
			p.do(action{verb: endAgain, id: i.ID, reason: i.DeleteReason})
		}
		return true
	case i.Drain != nil:
		// An acknowledgement is trusted (server document).
		if i.Drain.Acknowledged || i.Gone() || !p.now.Before(i.Drain.DeleteAt) {
			p.do(action{verb: end, id: i.ID, reason: i.Drain.Reason})
			return true
		}
	case unregistered(i, p.registrationTimeout, p.tried[i.ID]):
		p.do(action{verb: end, id: i.ID, reason: instance.ReasonUnregistered})
		return true
	}
	return false
}

func (p *planner) do(a action) {
	p.actions = append(p.actions, a)
}

// create orders a new instance. Scaling up is the only reason that does not
// replace another one.
func (p *planner) create(reason string) {
	p.do(action{verb: create, reason: reason})
	p.created++
	p.total++
}

// dismiss decides that an instance goes. There is nothing to move away from one
// that does not run.
func (p *planner) dismiss(i *instance.Instance, reason string) {
	ends := i.Gone() || i.State == instance.Pending || p.drainTimeout == 0
	if ends {
		p.do(action{verb: end, id: i.ID, reason: reason})
	} else {
		p.do(action{verb: drain, id: i.ID, reason: reason, deleteAt: p.now.Add(p.drainTimeout)})
	}
	if i.OnDemand {
		return
	}
	p.leaving++
	if ends {
		p.total--
	}
}

// order orders what the provider does not know yet.
func (p *planner) order(instances []*instance.Instance) {
	for _, i := range instances {
		if unordered(i) {
			p.do(action{verb: order, id: i.ID})
		}
	}
}

// aged tells whether an instance has reached an age. Zero is never reached.
func (p *planner) aged(i *instance.Instance, age time.Duration) bool {
	return age > 0 && !p.now.Before(i.CreatedAt.Add(age))
}

// unordered tells whether the provider has never known an instance.
func unordered(i *instance.Instance) bool {
	return i.State == instance.Pending && !i.Known
}

// unregistered tells whether to give up an instance that was last ordered at a
// time: its timeout had passed then, and the provider does not know it yet. Age
// alone says nothing. Orders may have waited for their turn that long, or for a
// server to lead, and one that was promised to an operator is kept (decision). A
// zero timeout never passes.
func unregistered(i *instance.Instance, timeout time.Duration, tried time.Time) bool {
	return timeout > 0 && unordered(i) && !tried.Before(i.CreatedAt.Add(timeout))
}

// leavesUnhealthy tells whether an instance that leaves does so for being
// unhealthy.
func leavesUnhealthy(i *instance.Instance) bool {
	return i.DeleteReason == instance.ReasonUnhealthy || i.Drain != nil && i.Drain.Reason == instance.ReasonUnhealthy
}

// isReplaced tells whether an instance that leaves, or is gone, has another one
// in its place: only those that are too many have none.
func isReplaced(i *instance.Instance) bool {
	reason := i.DeleteReason
	if i.Drain != nil {
		reason = i.Drain.Reason
	}
	return reason != instance.ReasonScaleDown
}

// oldestFirst orders instances by age, and those of one age by id.
func oldestFirst(a, b *instance.Instance) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
}
