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
// The forced age is a promise, and one instance too many at a time cannot keep
// it while another one drains. So this is the one case that exceeds size + 1:
// the alternatives are to miss the age or to fall below the size.
func (p *planner) replaceOverdue() {
	// Those too many are replacements, whose turn to be replaced is later.
	replaced := max(0, len(p.staying)-p.size)
	for range p.count(overdue) - replaced {
		p.create(overdue.reason())
	}
}

// replaceUnhealthy creates replacements for instances that are not well, as far
// as there is room for one more than are wanted.
func (p *planner) replaceUnhealthy() {
	// Ending one that is gone makes room. It needs no drain and waits for
	// nothing: without room its replacement is what scaling up creates next.
	p.staying = slices.DeleteFunc(p.staying, func(i *instance.Instance) bool {
		if p.troubleOf(i) != gone {
			return false
		}
		if p.total <= p.size {
			p.create(gone.reason())
		}
		p.dismiss(i, gone.reason())
		return true
	})
	for range p.count(impaired) {
		if p.total > p.size {
			return
		}
		p.create(impaired.reason())
	}
}

// rotate creates a replacement for one instance that could stay if it had to,
// when nothing else goes on in the group.
func (p *planner) rotate() {
	if p.leaving > 0 || len(p.staying) != p.size {
		return
	}
	worst := noTrouble
	for _, i := range p.staying {
		if i.State != instance.Running {
			return
		}
		worst = min(worst, p.troubleOf(i))
	}
	if worst == drifted || worst == eligible {
		p.create(worst.reason())
	}
}

// count returns how many of the instances that stay have this trouble.
func (p *planner) count(t trouble) int {
	count := 0
	for _, i := range p.staying {
		if p.troubleOf(i) == t {
			count++
		}
	}
	return count
}
