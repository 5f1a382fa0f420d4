// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/testing/tier"
)

// changeGrant sometimes sends another grant, as an operator does.
func (w *world) changeGrant() {
	if w.grants == nil || w.grants.IntN(12) > 0 {
		return
	}
	if w.grants.IntN(4) == 0 {
		w.nameInstances()
	}
	if w.grants.IntN(6) == 0 {
		w.rotation = nil
		return
	}
	minutes := func(least, n int) *time.Time {
		return ptr.To(w.now.Add(time.Duration(least+w.grants.IntN(n)) * time.Minute))
	}
	grant := groups.RotationGrant{
		MaxSurge: int32(w.grants.IntN(4)), MaxUnavailable: int32(w.grants.IntN(3)), UpToDate: int32(w.grants.IntN(w.size + 2)),
	}
	if w.grants.IntN(3) == 0 {
		grant.NotAfter = minutes(-10, 40)
	}
	if w.grants.IntN(3) == 0 {
		grant.After = minutes(-20, 40)
	}
	if w.grants.IntN(3) == 0 {
		grant.MaxAgeSeconds = 2400
	}
	w.rotation = &grant
	if w.grants.IntN(3) == 0 {
		grant.Target = w.target()
	}
}

// nameInstances names other instances to replace, some of which may not exist any more.
func (w *world) nameInstances() {
	ids := slices.Concat(slices.Sorted(maps.Keys(w.records)), slices.Sorted(maps.Keys(w.tombstones)))
	w.replace = map[string]bool{"unknown": true}
	for range min(w.grants.IntN(3), len(ids)) {
		w.replace[ids[w.grants.IntN(len(ids))]] = true
	}
}

// target returns the target that operators get now.
func (w *world) target() string { return rotationProgress(w.state, w.now).Target }

// grantAll sends a grant with which a rotation ends.
func (w *world) grantAll() {
	if w.rotation == nil {
		return
	}
	grant := *w.rotation
	grant.UpToDate, grant.NotAfter, grant.MaxAgeSeconds, grant.Target = int32(w.size), nil, 0, ""
	if grant.MaxSurge+grant.MaxUnavailable == 0 {
		grant.MaxSurge = 1
	}
	w.rotation = &grant
}

// granted returns the grant in force.
func (c *planChecker) granted() groups.RotationGrant {
	if c.rotation != nil {
		return *c.rotation
	}
	return groups.RotationGrant{MaxSurge: 1, UpToDate: int32(c.size)}
}

// grantsNow reports whether a replacement may be started.
func (c *planChecker) grantsNow() bool {
	grant := c.granted()
	return (grant.NotAfter == nil || c.now.Before(*grant.NotAfter)) &&
		(grant.Target == "" || grant.Target == rotationProgress(c.state, c.now).Target)
}

// checkRotation checks a step that a plan may only take to rotate instances, after it: the
// creation of an instance, or the deletion of instance i without a surplus.
func (c *planChecker) checkRotation(a action, i *instance.Instance) error {
	moving, upToDate, missing := c.created, c.created, max(0, c.size-c.staying())
	leaving := 0
	for _, other := range c.byID {
		switch {
		case other.OnDemand:
		case c.leaving[other.ID]:
			leaving++
		default:
			if other.State != instance.Running || other.Agent.State == instance.AgentUnknown {
				moving++
			}
			if !c.outdated(other) {
				upToDate++
			}
		}
	}
	moving = max(moving, c.staying()-c.size)
	grant := c.granted()
	switch {
	case !c.grantsNow():
		return fmt.Errorf("nothing is started after %v, or for another target than %q", grant.NotAfter, grant.Target)
	case !outdatedReason(a.reason):
		return fmt.Errorf("%s is no reason to rotate", a.reason)
	case i != nil && !c.rotatable(i):
		return fmt.Errorf("it is not outdated, or does not work")
	case i != nil && !c.createAfter.IsZero() && (c.now.Before(c.createAfter) || moving+max(leaving, missing) > 1):
		return fmt.Errorf("the last instance has not registered")
	case moving+max(leaving, missing) > int(grant.MaxSurge+grant.MaxUnavailable):
		return fmt.Errorf("%d start, %d leave and %d are missing, the grant allows %d and %d", moving, leaving, missing, grant.MaxSurge, grant.MaxUnavailable)
	case upToDate+missing > int(grant.UpToDate):
		return fmt.Errorf("%d are or become up to date, the grant allows %d", upToDate+missing, grant.UpToDate)
	}
	return nil
}

// rotatable reports whether a rotation may start the replacement of an instance: it works, and no
// other rule replaces it.
func (c *planChecker) rotatable(i *instance.Instance) bool {
	return c.replaceable(i) && i.State == instance.Running
}

// replaceable reports whether a surplus instance is deleted because it is outdated, and for no other
// reason. It may not run yet.
func (c *planChecker) replaceable(i *instance.Instance) bool {
	return c.outdated(i) && i.State != instance.Impaired && exists(i) && !c.reached(i, c.expiry.ForcedAge) && !c.replace[i.ID] && !c.leftAlone(i)
}

// leftAlone reports whether an instance is a deletion candidate that is surplus: its removal waits
// until all others work.
func (c *planChecker) leftAlone(i *instance.Instance) bool {
	return c.removeFirst[i.ID] && c.staying() >= c.size
}

// outdated reports whether another instance would be created in place of an instance.
func (c *planChecker) outdated(i *instance.Instance) bool {
	after := c.granted().After
	return c.infraConfigHash != "" && i.InfraConfigHash != c.infraConfigHash ||
		after != nil && !c.now.Before(*after) && i.CreatedAt.Before(*after) ||
		c.reached(i, c.expiry.ForcedAge) || c.reached(i, c.expiry.EligibleAge) ||
		c.reached(i, time.Duration(c.granted().MaxAgeSeconds)*time.Second)
}

// leavingForRotation counts the instances that exist and are deleted because they are outdated.
func (c *planChecker) leavingForRotation() int {
	count := 0
	for id, rotating := range c.rotating {
		if rotating && c.leaving[id] {
			count++
		}
	}
	return count
}

// outdatedReason reports whether an instance is outdated that is deleted for this reason.
func outdatedReason(reason string) bool {
	return reason == instance.ReasonConfigDrift || reason == instance.ReasonExpired || reason == instance.ReasonRotated
}

// Without a grant a rotation is what it was before there were grants: one instance at a time, if
// nothing else happens in the group.
func TestARotationWithoutAGrantIsAsBefore(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(40, 200)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(seed)
			if seed%2 == 1 {
				w.agents = map[string]instance.Agent{}
			}
			for step := range 1500 {
				w.disturb()
				s := w.observe()
				actions, _ := plan(s, w.now)
				p := newPlanner(s, w.now)
				p.replaceNoticed()
				p.scaleDown()
				p.replaceOverdue()
				p.replaceUnhealthy()
				want, before := p.rotatedBeforeGrants(), len(p.actions)
				p.rotate()
				if got := p.actions[before:]; !slices.Equal(got, want) {
					t.Fatalf("step %d: %v, before grants %v\nsize %d, instances %s", step, got, want, s.size, describe(s.instances))
				}
				w.carryOut(actions, math.MaxInt)
			}
		})
	}
}

// rotatedBeforeGrants returns what rotate did when there were no grants.
func (p *planner) rotatedBeforeGrants() []action {
	if p.leaving > 0 || p.present() != p.size || len(p.absent) > 0 {
		return nil
	}
	worst := noProblem
	for _, i := range p.staying {
		if i.State != instance.Running || i.Agent.State == instance.AgentUnknown {
			return nil
		}
		worst = min(worst, p.problemOf(i))
	}
	if worst != drifted && worst != eligible || !p.mayCreate() {
		return nil
	}
	return []action{{verb: create, reason: worst.reason()}}
}
