// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"slices"

	"nstance.dev/operator/pkg/server/instance"
)

// replaceOverdue creates a replacement for every instance that has reached the
// forced age and has none.
//
// The forced age is guaranteed, which one surplus instance at a time could not
// achieve while another one drains. So this is the only case that exceeds size
// + 1: the alternatives are to miss the age or to fall below the size.
func (p *planner) replaceOverdue() {
	// Surplus instances are replacements, which are due later.
	replaced := max(0, p.present()-p.size)
	for range p.count(overdue) - replaced {
		p.create(overdue.reason())
	}
}

// impairedShare is how many impaired instances are replaced at a time, as a divisor of the
// size. It is one in any case.
const impairedShare = 10

// replaceUnhealthy creates replacements for unhealthy instances: for those that run, as far
// as the size and a tenth of it allow.
func (p *planner) replaceUnhealthy() {
	p.replaceDown()
	limit := p.size + max(1, p.size/impairedShare)
	for range p.count(impaired) {
		if p.total >= limit {
			return
		}
		p.create(impaired.reason())
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
// replacements as far as size + 1 allows.
func (p *planner) replaceDown() {
	// Terminating an instance that is down needs no drain and makes room at
	// once. Without room, scaling up creates its replacement next.
	p.staying = slices.DeleteFunc(p.staying, func(i *instance.Instance) bool {
		problem := p.problemOf(i)
		if problem != down && problem != abandoned {
			return false
		}
		if p.total <= p.size {
			p.create(problem.reason())
		}
		p.startDeletion(i, problem.reason())
		return true
	})
}

// rotate creates a replacement for one instance that is outdated but healthy,
// if the group is otherwise stable and all of its agents report.
func (p *planner) rotate() {
	if p.leaving > 0 || p.present() != p.size || len(p.absent) > 0 {
		return
	}
	worst := noProblem
	for _, i := range p.staying {
		if i.State != instance.Running || i.Agent.State == instance.AgentUnknown {
			return
		}
		worst = min(worst, p.problemOf(i))
	}
	if worst == drifted || worst == eligible {
		p.create(worst.reason())
	}
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
