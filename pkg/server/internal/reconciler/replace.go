// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/instance"
)

// replaceOverdue creates a replacement for every instance that has reached the forced age and
// has no replacement.
//
// The forced age is guaranteed, which one surplus instance at a time could not achieve while
// another instance drains. So every overdue instance gets a replacement, whatever the surge is:
// the alternatives are to miss the age or to fall below the size.
func (p *planner) replaceOverdue() {
	// Surplus instances are replacements, which are due later.
	replaced := max(0, p.present()-p.size)
	for range p.count(overdue) - replaced {
		p.create(overdue.reason())
	}
}

// impairedShare is the share of the size, as a divisor, of which impaired instances are
// replaced at a time. At least one is.
const impairedShare = 10

// replaceUnhealthy creates replacements for unhealthy instances that have none, and for those that an
// operator names. Instances that still run are replaced as far as the size and a tenth of it allow.
func (p *planner) replaceUnhealthy() {
	p.replaceDown()
	limit := p.size + max(1, p.size/impairedShare)
	// Surplus instances are replacements, in the order in which scaleDown deletes. Those of overdue
	// instances are due first.
	replaced := max(0, p.present()+p.created-p.size-p.count(overdue))
	for _, problem := range []problem{impaired, named} {
		for range p.count(problem) {
			if replaced--; replaced >= 0 {
				continue
			}
			if p.total >= limit {
				return
			}
			p.create(problem.reason())
		}
	}
}

// replaceNoticed drains the instances that their provider will terminate, and creates
// replacements for all of them at once.
func (p *planner) replaceNoticed() {
	noticed := 0
	p.staying = slices.DeleteFunc(p.staying, func(i *instance.Instance) bool {
		if i.Agent.Notice == nil || i.Down() {
			return false
		}
		noticed++
		p.startDeletion(i, instance.ReasonSpot)
		return true
	})
	for range min(noticed, p.size-p.present()-p.created) {
		p.create(instance.ReasonSpot)
	}
}

// replaceDown terminates the instances on which nothing runs or will run, and creates
// replacements as far as the size and the surge allow. A surplus instance is a replacement already.
func (p *planner) replaceDown() {
	present := p.present()
	// Terminating an instance that is down needs no drain and makes room at
	// once. Without room, scaling up creates its replacement next.
	p.staying = slices.DeleteFunc(p.staying, func(i *instance.Instance) bool {
		problem := p.problemOf(i)
		if problem != down && problem != abandoned {
			return false
		}
		if p.total < p.size+p.surge() && present <= p.size {
			p.create(problem.reason())
		}
		present--
		p.startDeletion(i, problem.reason())
		return true
	})
}

// count returns how many staying instances have this problem.
func (p *planner) count(wanted problem) int {
	count := 0
	for _, i := range p.staying {
		if p.problemOf(i) == wanted {
			count++
		}
	}
	return count
}

// isUncreated reports whether the provider has never listed an instance.
func isUncreated(i *instance.Instance) bool {
	return i.State == instance.Pending && !i.Known
}

// registrationTimedOut reports whether to give up an instance: the provider does not list it,
// and the last attempt to create it came after the timeout. Age alone is not enough, because
// the creation may have waited for its turn or for a leader, and a promised instance must be
// tried. A zero timeout never passes.
func registrationTimedOut(i *instance.Instance, timeout time.Duration, attempted time.Time) bool {
	return timeout > 0 && isUncreated(i) && !attempted.Before(i.CreatedAt.Add(timeout))
}

// neverUp reports whether to give up an instance that runs and whose agent has not registered in
// time, or whose machine is not ready in time.
func (p *planner) neverUp(i *instance.Instance) bool {
	return awaitsAgent(i) && p.registrationTimeout > 0 && !p.now.Before(i.Agent.Since.Add(p.registrationTimeout))
}

// awaitsAgent reports whether an instance runs, and its agent has not registered or reports that the
// machine is not ready. An agent that has registered and does not report is lost after a while.
func awaitsAgent(i *instance.Instance) bool {
	return i.Agent.State == instance.AgentAwaited && (i.Registration == nil || i.Agent.NotReady != "") && !i.Agent.Since.IsZero()
}

// isNoticed reports whether the provider has announced that it will terminate an
// instance. It does not count: nothing can keep it.
func isNoticed(i *instance.Instance) bool {
	return i.Agent.Notice != nil || i.Drain != nil && i.Drain.Reason == instance.ReasonSpot
}

// isDeletedAsUnhealthy reports whether an instance is being deleted for being
// unhealthy.
func isDeletedAsUnhealthy(i *instance.Instance) bool {
	return i.DeleteReason == instance.ReasonUnhealthy || i.Drain != nil && i.Drain.Reason == instance.ReasonUnhealthy
}

// isReplaced reports whether an instance that is being or was deleted has a replacement. Only
// surplus instances have no replacement; a returned instance is surplus too.
func isReplaced(i *instance.Instance) bool {
	reason := deletedFor(i)
	return reason != instance.ReasonScaleDown && reason != instance.ReasonReturned
}

// deletedFor returns why an instance is being or was deleted: the first reason, for which it
// drains.
func deletedFor(i *instance.Instance) string {
	if i.Drain != nil {
		return i.Drain.Reason
	}
	return i.DeleteReason
}

// oldestFirst orders instances by age, then by id.
func oldestFirst(a, b *instance.Instance) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
}

// problem is a reason to replace a staying managed instance. Surplus instances with the
// lowest value are deleted first.
type problem int

const (
	// candidate: an operator has requested its removal. This matters only for
	// surplus instances.
	candidate problem = iota
	// down: nothing runs on it.
	down
	// abandoned: its agent is still awaited, and it was created with another configuration,
	// which may be the reason.
	abandoned
	// overdue: it has reached the forced age.
	overdue
	// impaired: it runs, but is unhealthy.
	impaired
	// named: an operator wants it to be replaced.
	named
	// drifted: it was created with another configuration.
	drifted
	// rotated: it was created before the time after which an operator wants other instances.
	rotated
	// eligible: it has reached the eligible age.
	eligible
	// notPreferred: it should be of a better candidate, which is available.
	notPreferred
	// uncreated: it does not exist at the provider yet, its agent is still awaited, or it has
	// stopped and may be started again.
	// Without other problems it is deleted before existing instances, because that costs
	// nothing.
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
	outdated := p.hasDrifted(i)
	switch {
	case p.restarting[i.ID]:
		return uncreated
	case i.Down():
		return down
	case outdated && isComingUp(i):
		return abandoned
	case p.reachedAge(i, p.expiry.ForcedAge):
		return overdue
	case i.State == instance.Impaired && !p.keepUnhealthy:
		return impaired
	case p.replace[i.ID]:
		return named
	case outdated:
		return drifted
	case p.replacementRequested(i):
		return rotated
	case p.reachedAge(i, p.expiry.EligibleAge) || p.reachedAge(i, p.maxAge()):
		return eligible
	case p.notPreferred[i.ID]:
		return notPreferred
	case isUncreated(i) || isComingUp(i):
		return uncreated
	default:
		return noProblem
	}
}

// hasDrifted reports whether an instance was created with another configuration. The
// configuration of an instance without a hash is unknown.
func (p *planner) hasDrifted(i *instance.Instance) bool {
	if len(p.choices) > 0 {
		return !slices.ContainsFunc(p.choices, func(c candidates.Choice) bool { return c.Hash == i.InfraConfigHash })
	}
	return p.infraConfigHash != "" && i.InfraConfigHash != p.infraConfigHash
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
	case named:
		return instance.ReasonReplaced
	case rotated:
		return instance.ReasonRotated
	case notPreferred:
		return instance.ReasonNotPreferred
	default:
		return instance.ReasonScaleDown
	}
}

// urgent reports whether an instance with this problem is deleted regardless of
// other deletions in its group.
func (p problem) urgent() bool {
	return p <= named || p == uncreated
}
