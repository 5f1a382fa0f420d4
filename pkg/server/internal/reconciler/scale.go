// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/stock"
)

// scaleDown deletes surplus instances, which exist because the size is smaller or because
// they have been replaced: first the deletion candidates of the operator, then instances with
// the worst problem, then instances of the last candidate of the group, and the oldest among equals.
//
// If a candidate was replaced before its removal was requested, its replacement is the
// surplus instance, and no other may be deleted for it. Only its age distinguishes the
// replacement, so the youngest among equals is deleted in this case.
//
// Surplus instances are drained like all others that run, because it is unknown
// whether their workloads tolerate a termination. A deleted group is the case
// of size 0.
func (p *planner) scaleDown() {
	surplus := p.present() - p.size
	if surplus <= 0 {
		return
	}
	// Where nothing runs goes first. The size may also have been smaller since before the storage was
	// restored: the instances that were missing from the beginning are the surplus.
	p.absent = slices.DeleteFunc(p.absent, func(i *instance.Instance) bool {
		if surplus == 0 || i.Found && i.State == instance.Missing {
			return false
		}
		surplus--
		p.startDeletion(i, down.reason())
		return true
	})
	slices.SortFunc(p.staying, p.compareSurplus)
	serving, working := p.serving(), 0
	for _, i := range p.staying {
		if works(i) {
			working++
		}
	}
	// Healthy instances wait only while an unhealthy instance is being drained or terminated.
	// An instance that was down leaves no record after its deletion, and its replacement then
	// looks like an instance from scaling up. Waiting for those replacements too would block
	// a group that was scaled up and down again for as long as the provider takes, possibly
	// forever. So the oldest instances are deleted.
	wait := p.unhealthy > 0 && slices.ContainsFunc(p.staying, isPending)
	var staying []*instance.Instance
	// If an instance has to wait, no other is deleted instead.
	waiting := false
	for n, i := range p.staying {
		problem := p.surplusProblemOf(i)
		others := serving
		if problem == notPreferred {
			// The cloud may accept a request for a better candidate and end it for lack of capacity.
			others = min(others, working)
		}
		if isServing(i) {
			others--
		}
		switch {
		case n >= surplus:
			staying = append(staying, i)
		case wait && !problem.urgent():
			// Healthy instances wait until an unhealthy one has a running
			// replacement (docs/server.md#reconciliation).
			staying = append(staying, i)
		case isAlive(i) && (waiting || others < p.size-p.unavailable(problem)):
			// Its replacement has not been created yet, or its agent has not
			// reported.
			waiting = true
			staying = append(staying, i)
		default:
			if isServing(i) {
				serving--
			}
			if works(i) {
				working--
			}
			p.startDeletion(i, problem.reason())
		}
	}
	slices.SortFunc(staying, oldestFirst)
	p.staying = staying
}

// compareSurplus orders instances by which to delete first when there are too
// many.
func (p *planner) compareSurplus(a, b *instance.Instance) int {
	byAge := oldestFirst(a, b)
	if p.replaced {
		byAge = -byAge
	}
	return cmp.Or(
		cmp.Compare(p.surplusProblemOf(a), p.surplusProblemOf(b)),
		cmp.Compare(p.problemOf(a), p.problemOf(b)),
		cmp.Compare(p.assigned[b.ID], p.assigned[a.ID]),
		byAge,
	)
}

// compareProblems orders instances as compareSurplus does before an operator names deletion
// candidates.
func (p *planner) compareProblems(a, b *instance.Instance) int {
	return cmp.Or(cmp.Compare(p.problemOf(a), p.problemOf(b)), cmp.Compare(p.assigned[b.ID], p.assigned[a.ID]), oldestFirst(a, b))
}

// deletionOrder returns the managed instances in the order in which they are deleted if the group
// gets smaller: first the instances that are being deleted, and then the others as
// scaleDown selects them. Instances that are left alone although they are missing are left out.
func deletionOrder(s state, now time.Time) []instance.NextDeletion {
	p := newPlanner(s, now)
	staying := map[string]bool{}
	for _, i := range p.staying {
		// Another plan begins with the instances that their provider terminates.
		staying[i.ID] = i.Agent.Notice == nil || i.Down()
	}
	var leaving, others []*instance.Instance
	for n := range s.instances {
		switch i := &s.instances[n]; {
		case i.OnDemand || p.kept[i.ID]:
		case staying[i.ID]:
			others = append(others, i)
		default:
			leaving = append(leaving, i)
		}
	}
	slices.SortFunc(leaving, p.compareProblems)
	slices.SortFunc(others, p.compareProblems)
	order := make([]instance.NextDeletion, 0, len(leaving)+len(others))
	for _, i := range slices.Concat(leaving, others) {
		order = append(order, instance.NextDeletion{ID: i.ID, Reason: p.deletionReason(i), Outdated: p.outdatedReason(i)})
	}
	return order
}

// deletionReason returns why an instance is being deleted or is to be replaced, "" if only the
// size decides.
func (p *planner) deletionReason(i *instance.Instance) string {
	problem, reason := p.problemOf(i), i.DeleteReason
	if i.Drain != nil {
		reason = i.Drain.Reason
	}
	switch {
	case reason == instance.ReasonScaleDown:
		return ""
	case reason != "":
		return reason
	case i.Agent.Notice != nil && !i.Down():
		return instance.ReasonSpot
	case problem < uncreated:
		return problem.reason()
	}
	return ""
}

// DeletionOrders returns the deletion orders of groups. They change with the instances, with
// the configuration, and with the time.
type DeletionOrders struct {
	// Expiry returns the ages at which instances are replaced.
	Expiry func() config.Expiry
	// Stock knows which candidates of groups are available. It is optional.
	Stock *stock.Stock

	mu sync.Mutex
	// last has what Of has returned.
	last map[instance.GroupKey]deletions
}

// deletions is what operators get about the deletions of a group.
type deletions struct {
	order    []instance.NextDeletion
	progress instance.RotationProgress
}

func (d deletions) equal(other deletions) bool {
	return slices.Equal(d.order, other.order) && d.progress.Equal(other.progress)
}

// Of returns the managed instances of a group in the order in which they are deleted if the group
// gets smaller, and the progress of its rotation.
func (o *DeletionOrders) Of(group *groups.Group, instances []instance.Instance) ([]instance.NextDeletion, instance.RotationProgress) {
	computed := o.compute(group, instances, time.Now())
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last == nil {
		o.last = map[instance.GroupKey]deletions{}
	}
	o.last[group.Key] = computed
	return computed.order, computed.progress
}

func (o *DeletionOrders) compute(group *groups.Group, instances []instance.Instance, now time.Time) deletions {
	s := state{
		size: int(group.Size), infraConfigHash: group.InfraConfigHash, keepUnhealthy: group.KeepUnhealthy,
		expiry: o.Expiry(), instances: instances, rotation: group.Rotation, replace: setOf(group.Replace),
	}
	s.setCandidates(group, o.Stock)
	return deletions{deletionOrder(s, now), rotationProgress(s, now)}
}

// setOf returns the set of ids.
func setOf(ids []string) map[string]bool {
	set := make(map[string]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// outdated reports whether Of would return something else about a group, because time has passed
// since.
func (o *DeletionOrders) outdated(group *groups.Group, instances []instance.Instance, now time.Time) bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	last, found := o.last[group.Key]
	o.mu.Unlock()
	return found && !last.equal(o.compute(group, instances, now))
}

// remove removes the order of a group that no longer exists.
func (o *DeletionOrders) remove(key instance.GroupKey) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.last, key)
}

// scaleUp creates missing instances. Instances that drain and are replaced still count, so
// that only surplus instances exceed size + surge. If a grant allows no surge, an instance that
// leaves for a rotation keeps its place until it is deleted: there may be no room for its replacement
// before. One plan creates at most one instance more than one reconciliation can, so that another
// reconciliation follows.
func (p *planner) scaleUp() {
	missing := min(p.size-p.present()-p.created, p.size+p.surge()-p.total)
	if grant := p.grant(); grant.MaxSurge == 0 && grant.MaxUnavailable > 0 {
		missing = min(missing, p.size-p.present()-p.created-p.rotating)
	}
	for range min(missing, maxCreations+1) {
		p.create(reasonScaleUp)
	}
}

// create plans a new instance. Every reason but scaling up means a replacement. A new
// instance that has to wait, because others have failed, is counted as if it were created.
func (p *planner) create(reason string) { p.createBelow(reason, 0) }

// createBelow plans a new instance of a candidate before another one, or of any candidate if that is 0.
func (p *planner) createBelow(reason string, below int) {
	if p.mayCreate() {
		p.do(action{verb: create, reason: reason, below: below})
	}
	p.created++
	p.total++
}

// mayCreate reports whether an instance may be created now.
func (p *planner) mayCreate() bool {
	if p.failed {
		return false
	}
	if p.createAfter.IsZero() {
		return true
	}
	return !p.now.Before(p.createAfter) && p.created == 0 && !slices.ContainsFunc(p.staying, isPending)
}

// isAlive reports whether the provider lists an instance on which something runs or will run.
// If it has an agent, the agent must have reported.
func isAlive(i *instance.Instance) bool {
	return !i.Down() && !isUncreated(i) && !isComingUp(i)
}

// isServing reports whether an instance counts for the size, so that another instance can be
// deleted for it.
func isServing(i *instance.Instance) bool {
	return isAlive(i) && i.Agent.State != instance.AgentUnknown
}

// isComingUp reports whether the agent of an instance that runs is still awaited.
func isComingUp(i *instance.Instance) bool {
	return i.Agent.State == instance.AgentAwaited
}

func isPending(i *instance.Instance) bool {
	return i.State == instance.Pending
}

// deleteOnDemand deletes on-demand instances that are down, will be terminated by their
// provider, or have reached their age. They have no replacements, wait for nothing, and
// outlive their group. An uncreated instance does not outlive it, because its group's
// settings are needed to create it.
func (p *planner) deleteOnDemand() {
	p.onDemand = slices.DeleteFunc(p.onDemand, func(i *instance.Instance) bool {
		switch {
		case i.Down() && !p.restarting[i.ID]:
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
