// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"slices"
	"time"

	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

// state is the input of a plan for one group.
type state struct {
	// deleted is true for a group that was deleted. Its size is 0.
	deleted bool
	// lost is true for a group that neither exists nor was deleted: the storage has lost
	// it. Neither its size nor its settings are known.
	lost bool
	// unconfirmed is true for a group whose settings may be outdated: it may be larger
	// than its size.
	unconfirmed bool
	// size is the desired number of managed instances.
	size int
	// removeFirst contains the ids of the instances to delete first when there are too many.
	// Ids of other instances than managed ones have no effect.
	removeFirst map[string]bool
	// replaced is true when an instance of removeFirst was deleted and replaced
	// before its removal was requested.
	replaced bool
	// waiting is true while an operator may send another size for missing instances.
	waiting bool
	// stuck are the instances that have been terminating for so long that they do not count
	// as leaving.
	stuck map[string]bool
	// kept are the missing and the stopped instances that are left alone: they are neither replaced
	// nor terminated.
	kept map[string]bool
	// restarting are the stopped instances that may be started again: they are not replaced yet.
	restarting map[string]bool
	// infraConfigHash is the hash of the group. If it is empty, no instance has
	// drifted.
	infraConfigHash string
	// choices are the candidates of the group. If there are any, instances are compared with them and
	// not with infraConfigHash.
	choices []candidates.Choice
	// returnAfter is for how long a better candidate must have been free of rejections before an
	// instance is replaced by an instance of it. Zero means never.
	returnAfter time.Duration
	// freeSince is since when requests of each candidate are not rejected, zero if that is not known.
	freeSince []time.Time
	// drainTimeout is how long instances may take to drain. Zero means that
	// they are terminated at once.
	drainTimeout time.Duration
	// keepUnhealthy is true if instances that run and are unhealthy are not replaced.
	keepUnhealthy bool
	expiry        config.Expiry
	// rotation bounds the replacement of outdated instances, nil without a grant.
	rotation *groups.RotationGrant
	// replace contains the ids of the instances that an operator wants to be replaced. Ids of other
	// instances than managed ones have no effect.
	replace map[string]bool
	// registrationTimeout is how long an instance may be unknown to its provider, and how
	// long the agent of a running instance may take to register. Zero means forever.
	registrationTimeout time.Duration
	// createAfter is when the next instance may be created because the agent of the last
	// instance has not registered. Then instances are created one at a time. It is zero if
	// there was no such failure.
	createAfter time.Time
	// attempted contains, by instance id, when this server last tried to create
	// an instance that the provider still does not list.
	attempted map[string]time.Time
	// instances are all instances with a record, including on-demand instances, in
	// any order.
	instances []instance.Instance
	// deregisterUntil contains, by instance id, until when the termination of an instance
	// waits because it is a target of a load balancer.
	deregisterUntil map[string]time.Time
	// providerIDs contains, by instance id, the provider ids that are not in a record yet.
	providerIDs map[string]string
}

// plan returns the actions for a group in order of priority (docs/server.md#reconciliation),
// and when the next action is due if nothing changes before. A zero time means never.
//
// A replacement is created first and exceeds the size until the other instance is deleted.
// The plan that creates it does not delete the other instance: a later plan finds too many
// instances and deletes the worst. So a plan depends only on the observed state, and another
// server can continue at any point.
func plan(s state, now time.Time) (actions []action, next time.Time) {
	p := newPlanner(s, now)
	if s.lost || s.waiting {
		// An operator or an administrator decides about the managed instances.
		p.deleteOnDemand()
		return p.actions, p.nextDeadline()
	}
	if s.unconfirmed {
		// Until an operator confirms the size, only instances on which nothing runs are deleted.
		p.replaceDown()
	} else {
		p.replaceNoticed()
		p.scaleDown()
		p.replaceOverdue()
		p.replaceUnhealthy()
		p.rotate()
	}
	// Instances with a record come before scaling up, so that a provider that
	// rejects requests does not leave another record behind with every attempt.
	p.createRecorded(p.staying)
	p.scaleUp()
	p.deleteOnDemand()
	p.createRecorded(p.onDemand)
	return p.actions, p.nextDeadline()
}

// planner makes one plan. Its counts assume that the actions so far are done.
type planner struct {
	state
	now     time.Time
	actions []action
	// staying are the managed instances that are not being deleted, oldest
	// first, without those that this plan creates.
	staying []*instance.Instance
	// absent are the managed instances that are left alone although they are missing or have stopped.
	absent []*instance.Instance
	// created is how many instances this plan creates.
	created int
	// total is how many managed instances are not being terminated, including those created
	// and draining instances that are replaced. Surplus instances that drain do not count: the
	// group can grow again meanwhile.
	total int
	// leaving is how many managed instances are being deleted, and unhealthy
	// how many of them need a replacement because they are unhealthy.
	leaving, unhealthy int
	// rotating is how many of leaving are being deleted because they are outdated.
	rotating int
	// failed is true if a managed instance is given up because its agent has not registered.
	// The next plan decides when the next instance may be created.
	failed bool
	// onDemand are the on-demand instances that are not being deleted, oldest
	// first.
	onDemand []*instance.Instance
	// assigned has the candidates of the managed instances that are not being deleted, by id.
	assigned map[string]int
	// notPreferred has the instances that should be of a better candidate.
	notPreferred map[string]bool
	// replaceable are the ids of the instances that are to be replaced, in the order in which they
	// leave. It is empty without candidates.
	replaceable []string
}

// newPlanner continues earlier decisions and sorts the other instances into
// staying and onDemand.
func newPlanner(s state, now time.Time) *planner {
	p := &planner{state: s, now: now}
	sorted := make([]*instance.Instance, len(s.instances))
	for n := range s.instances {
		sorted[n] = &s.instances[n]
	}
	slices.SortFunc(sorted, oldestFirst)
	for _, i := range sorted {
		// The next step may be the termination.
		terminated := p.continueDeletion(i)
		switch leaving := terminated || i.BeingDeleted(); {
		case p.kept[i.ID] && i.OnDemand:
		case p.kept[i.ID]:
			p.absent = append(p.absent, i)
			p.total++
		case i.Returned && !leaving:
			p.deleteReturned(i)
		case i.OnDemand && !leaving:
			p.onDemand = append(p.onDemand, i)
		case i.OnDemand:
		case leaving:
			if !p.stuck[i.ID] {
				p.leaving++
				if isRotated(deletedFor(i)) {
					p.rotating++
				}
			}
			if p.removeFirst[i.ID] {
				p.replaced = p.replaced || isReplaced(i)
			} else if isDeletedAsUnhealthy(i) {
				p.unhealthy++
			}
			// An instance that the provider terminates on its own does not
			// count.
			if !terminated && i.State != instance.Terminating && !isNoticed(i) && isReplaced(i) {
				p.total++
			}
		default:
			// An unhealthy instance may already have its replacement: its drain
			// may have been forgotten, or may not have begun.
			p.replaced = p.replaced || p.removeFirst[i.ID] && p.problemOf(i) < uncreated
			p.staying = append(p.staying, i)
			p.total++
		}
	}
	p.assign()
	return p
}

// continueDeletion plans the next step of an earlier decision. It reports
// whether the instance is being terminated.
func (p *planner) continueDeletion(i *instance.Instance) (terminated bool) {
	if i.DeleteReason != "" && !i.Known {
		p.do(action{verb: removeRecord, id: i.ID})
		return true
	}
	if providerID := p.providerIDs[i.ID]; providerID != "" {
		p.do(action{verb: setProviderID, id: i.ID, providerID: providerID})
	}
	switch {
	case i.DeleteReason != "":
		if i.State != instance.Terminating && !p.awaitsDeregistration(i) {
			p.do(action{verb: terminateAgain, id: i.ID, reason: i.DeleteReason})
		}
		return true
	case i.Drain != nil:
		// An acknowledgement always counts (docs/server.md#drains), once load balancers have
		// stopped sending requests to the instance.
		over := i.Drain.Acknowledged || !p.now.Before(i.Drain.DeleteAt)
		if over && !p.awaitsDeregistration(i) || i.Down() {
			p.do(action{verb: terminate, id: i.ID, reason: i.Drain.Reason})
			return true
		}
	case p.neverUp(i):
		p.failed = p.failed || !i.OnDemand
		p.do(action{verb: terminate, id: i.ID, reason: instance.ReasonUnregistered})
		return true
	case registrationTimedOut(i, p.registrationTimeout, p.attempted[i.ID]):
		p.do(action{verb: terminate, id: i.ID, reason: instance.ReasonUnregistered})
		return true
	}
	return false
}

// present returns how many managed instances are not being deleted, without the instances
// that this plan creates.
func (p *planner) present() int { return len(p.staying) + len(p.absent) }

func (p *planner) do(a action) {
	p.actions = append(p.actions, a)
}

// startDeletion plans the deletion of an instance. An instance that does not run needs no
// drain. If its provider will terminate it, it drains until then.
func (p *planner) startDeletion(i *instance.Instance, reason string) {
	immediate := i.Down() || i.State == instance.Pending || p.drainTimeout == 0
	if immediate {
		p.do(action{verb: terminate, id: i.ID, reason: reason})
	} else {
		deleteAt := p.now.Add(p.drainTimeout)
		if notice := i.Agent.Notice; notice != nil && !notice.Deadline.IsZero() && notice.Deadline.Before(deleteAt) {
			deleteAt = notice.Deadline
		}
		p.do(action{verb: drain, id: i.ID, reason: reason, deleteAt: deleteAt})
	}
	if i.OnDemand {
		return
	}
	p.leaving++
	if isRotated(reason) {
		p.rotating++
	}
	if immediate || isNoticed(i) || reason == instance.ReasonScaleDown || reason == instance.ReasonReturned {
		p.total--
	}
}

// deleteReturned plans the deletion of an instance that was deleted and is listed again. It
// was given up because its provider did not list it: another instance has its place, and its
// Pods still run.
func (p *planner) deleteReturned(i *instance.Instance) {
	if !i.OnDemand {
		p.total++
	}
	p.startDeletion(i, instance.ReasonReturned)
}

// createRecorded plans the creation of instances that the provider has never
// listed.
func (p *planner) createRecorded(instances []*instance.Instance) {
	below := p.recordedBelow(instances)
	for _, i := range instances {
		if isUncreated(i) {
			p.do(action{verb: createRecorded, id: i.ID, below: below[i.ID]})
		}
	}
}

// reachedAge reports whether an instance has reached an age. Zero means never.
func (p *planner) reachedAge(i *instance.Instance, age time.Duration) bool {
	return age > 0 && !p.now.Before(i.CreatedAt.Add(age))
}

// verb is the kind of an action.
type verb string

const (
	// setProviderID stores the provider's id of an instance.
	setProviderID verb = "set provider id"
	// removeRecord removes the record of a deleted instance.
	removeRecord verb = "remove"
	// terminate deletes an instance at the provider.
	terminate verb = "terminate"
	// terminateAgain repeats the deletion, because the first request may have
	// been lost.
	terminateAgain verb = "terminate again"
	// drain begins the drain of an instance.
	drain verb = "drain"
	// create stores the record of a new instance and creates it at the
	// provider.
	create verb = "create"
	// createRecorded creates an instance at the provider that already has a
	// record.
	createRecorded verb = "create recorded"
)

// reasonScaleUp is the reason for an instance that replaces no other. A
// replacement has the reason for which the other instance is deleted.
const reasonScaleUp = "scale-up"

// action is one step of a plan.
type action struct {
	verb verb
	// id identifies the instance. It is empty for a new instance.
	id string
	// reason is why to create, drain or terminate the instance.
	reason string
	// providerID is the id to store.
	providerID string
	// deleteAt is the deadline of a drain without an acknowledgement.
	deleteAt time.Time
	// below is the candidate that the new instance must be better than, 0 if there is none.
	below int
}

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
		age(i, p.maxAge())
	}
	for _, since := range p.freeSince {
		if p.returnAfter > 0 && !since.IsZero() {
			at(since.Add(p.returnAfter))
		}
	}
	if after := p.grant().After; after != nil {
		at(*after)
	}
	for _, i := range p.onDemand {
		age(i, p.expiry.OnDemandAge)
	}
	for _, i := range slices.Concat(p.staying, p.onDemand) {
		switch {
		case isUncreated(i):
			age(i, p.registrationTimeout)
		case awaitsAgent(i) && p.registrationTimeout > 0:
			at(i.Agent.Since.Add(p.registrationTimeout))
		}
	}
	for _, until := range p.deregisterUntil {
		at(until)
	}
	at(p.createAfter)
	return next
}
