// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"cmp"
	"slices"

	"nstance.dev/operator/pkg/server/instance"
)

// scaleDown lets those go that are too many, because fewer are wanted or because
// they have been replaced: the chosen and the worst first, and of the same kind
// the oldest.
//
// Where a chosen one was replaced before it was known that it goes for good, its
// replacement is one too many and must not cost another one its place. Nothing
// tells which it is but its age: so of the same kind the youngest go then.
//
// Fewer instances are drained as everything else that runs is: nothing that runs
// in a group says whether it may be cut off, and a deleted group is the case of
// size 0.
func (p *planner) scaleDown() {
	surplus := len(p.staying) - p.size
	if surplus <= 0 {
		return
	}
	slices.SortFunc(p.staying, p.compareSurplus)
	there := 0
	for _, i := range p.staying {
		if isThere(i) {
			there++
		}
	}
	// Only an unhealthy one that still leaves is waited for. One on which nothing
	// runs is forgotten as soon as it is gone, and then nothing tells the
	// instance that replaces it from one that scales up. To wait for those as
	// well would hold up a group that was to grow and is to shrink again, for as
	// long as the provider takes, or for ever. So the oldest go (decision).
	waits := p.unhealthy > 0 && slices.ContainsFunc(p.staying, isPending)
	var kept []*instance.Instance
	for n, i := range p.staying {
		trouble := p.troubleOfSurplus(i)
		switch {
		case n >= surplus:
			kept = append(kept, i)
		case waits && !trouble.urgent():
			// One that is well waits until an unhealthy one has been replaced
			// by an instance that runs (server document).
			kept = append(kept, i)
		case isThere(i) && there <= p.size:
			// Its replacement has not been ordered yet.
			kept = append(kept, i)
		default:
			if isThere(i) {
				there--
			}
			p.dismiss(i, trouble.reason())
		}
	}
	slices.SortFunc(kept, oldestFirst)
	p.staying = kept
}

// compareSurplus orders instances by which goes first when there are too many.
func (p *planner) compareSurplus(a, b *instance.Instance) int {
	byAge := oldestFirst(a, b)
	if p.replaced {
		byAge = -byAge
	}
	return cmp.Or(
		cmp.Compare(p.troubleOfSurplus(a), p.troubleOfSurplus(b)),
		cmp.Compare(p.troubleOf(a), p.troubleOf(b)),
		byAge,
	)
}

// scaleUp creates what is missing. Instances that drain still have their place,
// so that there is never more than one instance too many.
func (p *planner) scaleUp() {
	for len(p.staying)+p.created < p.size && p.total <= p.size {
		p.create(reasonScaleUp)
	}
}

// isThere tells whether the provider has an instance on which something runs or
// will run.
func isThere(i *instance.Instance) bool {
	return !i.Gone() && !unordered(i)
}

func isPending(i *instance.Instance) bool {
	return i.State == instance.Pending
}
