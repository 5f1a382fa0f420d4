// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// planChecker checks the actions of one plan in order. It counts independently
// of the planner, according to the documented rules.
type planChecker struct {
	state
	now  time.Time
	byID map[string]*instance.Instance
	// terminated are the instances that are being terminated, and leaving all
	// that are being deleted.
	terminated, leaving map[string]bool
	// youngest is true when the youngest healthy instances are to be deleted.
	youngest bool
	created  int
	// rank is the rank of the last action. It never decreases.
	rank int
}

// check returns an error if a plan violates a rule.
func check(s state, actions []action, now time.Time) error {
	c := &planChecker{state: s, now: now, byID: map[string]*instance.Instance{}, terminated: map[string]bool{}, leaving: map[string]bool{}}
	for n := range s.instances {
		i := &s.instances[n]
		c.byID[i.ID] = i
		c.terminated[i.ID] = i.DeleteReason != "" || i.State == instance.Terminating
		c.leaving[i.ID] = c.terminated[i.ID] || i.Drain != nil
		// The first reason counts. An instance that the plan gives up has no
		// reason yet.
		why := i.DeleteReason
		if i.Drain != nil {
			why = i.Drain.Reason
		}
		leaving := c.leaving[i.ID] || c.continues(i)
		replaced := leaving && why != instance.ReasonScaleDown || !leaving && !c.healthy(i)
		c.youngest = c.youngest || s.replaced || replaced && !i.OnDemand && s.removeFirst[i.ID]
	}
	for _, a := range actions {
		if err := c.checkAction(a); err != nil {
			return fmt.Errorf("%v: %w", a, err)
		}
	}
	return nil
}

func (c *planChecker) checkAction(a action) error {
	i := c.byID[a.id]
	if i == nil && a.verb != create {
		return fmt.Errorf("there is no such instance")
	}
	rank := c.rankOf(a, i)
	if rank < c.rank {
		return fmt.Errorf("comes after a less urgent action")
	}
	c.rank = rank
	switch a.verb {
	case setProviderID:
		if !i.Known || c.providerIDs[a.id] != a.providerID {
			return fmt.Errorf("the provider reports another id")
		}
	case removeRecord:
		if i.DeleteReason == "" || i.Known {
			return fmt.Errorf("it may still exist")
		}
	case terminateAgain:
		if i.DeleteReason != a.reason || !i.Known {
			return fmt.Errorf("its termination was not requested")
		}
	case drain, terminate:
		return c.checkDeletion(a, i)
	case create:
		return c.checkCreation(a)
	case createRecorded:
		if i.Known || i.State != instance.Pending || c.leaving[i.ID] {
			return fmt.Errorf("it must not be created")
		}
	}
	return nil
}

// rankOf returns the rank of an action in the order of priorities.
func (c *planChecker) rankOf(a action, i *instance.Instance) int {
	switch {
	case a.verb == createRecorded && i.OnDemand:
		return 9
	case a.verb == createRecorded:
		return 6
	case a.verb == create && a.reason == reasonScaleUp:
		return 7
	case a.verb == create && a.reason == instance.ReasonConfigDrift:
		return 5
	case a.verb == create && a.reason == instance.ReasonExpired && c.overdue() > 0:
		return 3
	case a.verb == create && a.reason == instance.ReasonExpired:
		return 5
	case a.verb == create:
		return 4
	case c.continues(i) || a.verb != drain && a.verb != terminate:
		return 1
	case i.OnDemand:
		return 8
	case i.Down() && c.staying() <= c.size+c.created:
		// It is not a surplus instance: it is replaced.
		return 4
	default:
		return 2
	}
}

// continues reports whether an earlier plan decided to delete an instance.
func (c *planChecker) continues(i *instance.Instance) bool {
	// Age is not enough: there must have been an attempt since.
	attempted := c.attempted[i.ID].Sub(i.CreatedAt) >= c.registrationTimeout
	registrationTimedOut := i.State == instance.Pending && !i.Known && c.reached(i, c.registrationTimeout) && attempted
	return i.DeleteReason != "" || i.Drain != nil || registrationTimedOut
}

func (c *planChecker) checkDeletion(a action, i *instance.Instance) error {
	if i.DeleteReason != "" {
		return fmt.Errorf("its termination was requested before")
	}
	if c.leaving[a.id] && (a.verb == drain || i.Drain == nil) {
		return fmt.Errorf("it is already being deleted")
	}
	runs := i.State == instance.Running || i.State == instance.Impaired
	switch {
	case a.verb == drain && (!runs || c.drainTimeout == 0):
		return fmt.Errorf("there is nothing to drain")
	case a.verb == drain && !a.deleteAt.Equal(c.now.Add(c.drainTimeout)):
		return fmt.Errorf("the drain does not take %v", c.drainTimeout)
	case a.verb == terminate && runs && i.Drain == nil && c.drainTimeout > 0:
		return fmt.Errorf("it has to drain")
	case a.verb == terminate && runs && i.Drain != nil && !i.Drain.Acknowledged && c.now.Before(i.Drain.DeleteAt):
		return fmt.Errorf("its drain is not over")
	}
	continuing := c.continues(i)
	c.leaving[a.id] = true
	c.terminated[a.id] = c.terminated[a.id] || a.verb == terminate
	switch {
	case continuing:
		return nil
	case i.OnDemand:
		if !i.Down() && !c.reached(i, c.expiry.OnDemandAge) && !c.deleted {
			return fmt.Errorf("there is no reason to delete this on-demand instance")
		}
		return nil
	case i.Down():
		return nil
	}
	// Only a surplus instance may be deleted, and only when all the others
	// exist.
	if c.staying() < c.size {
		return fmt.Errorf("leaves %d of %d", c.staying(), c.size)
	}
	existing := 0
	for _, other := range c.byID {
		if !other.OnDemand && !c.leaving[other.ID] && !other.Down() && other.Known {
			existing++
		}
	}
	if i.Known && existing < c.size {
		return fmt.Errorf("leaves %d of %d existing ones", existing, c.size)
	}
	return c.checkDeletionOrder(a, i)
}

// checkDeletionOrder checks that no other instance should have been deleted
// first.
func (c *planChecker) checkDeletionOrder(a action, i *instance.Instance) error {
	replacing, pending := false, false
	for _, other := range c.byID {
		if other.OnDemand {
			continue
		}
		unhealthy := other.Drain != nil && other.Drain.Reason == instance.ReasonUnhealthy || other.DeleteReason == instance.ReasonUnhealthy
		replacing = replacing || unhealthy && !c.removeFirst[other.ID]
		if c.leaving[other.ID] {
			continue
		}
		pending = pending || other.State == instance.Pending
		if c.removeFirst[i.ID] {
			continue
		}
		if c.removeFirst[other.ID] && (i.Known || !other.Known) {
			return fmt.Errorf("deleted before %s, which is a candidate", other.ID)
		}
		if other.Down() {
			return fmt.Errorf("deleted before %s, which is down", other.ID)
		}
		if a.reason == instance.ReasonScaleDown && i.Known {
			first := other.CreatedAt.Before(i.CreatedAt) || other.CreatedAt.Equal(i.CreatedAt) && other.ID < i.ID
			if c.youngest {
				first = !first && c.hasNoProblem(other)
			}
			if first || other.InfraConfigHash != c.infraConfigHash && !c.deleted || other.State == instance.Impaired {
				return fmt.Errorf("deleted before %s", other.ID)
			}
		}
	}
	if replacing && pending && i.State == instance.Running && i.Known && !c.reached(i, c.expiry.ForcedAge) && !c.removeFirst[i.ID] {
		return fmt.Errorf("deleted before the unhealthy one is replaced")
	}
	return nil
}

// hasNoProblem reports whether an existing instance has no problem.
func (c *planChecker) hasNoProblem(i *instance.Instance) bool { return c.healthy(i) && i.Known }

// healthy reports whether an instance needs no replacement.
func (c *planChecker) healthy(i *instance.Instance) bool {
	return !i.Down() && i.State != instance.Impaired && (c.infraConfigHash == "" || i.InfraConfigHash == c.infraConfigHash) &&
		!c.reached(i, c.expiry.ForcedAge) && !c.reached(i, c.expiry.EligibleAge)
}

func (c *planChecker) checkCreation(a action) error {
	total := c.created
	stable := c.created == 0
	for _, i := range c.byID {
		if i.OnDemand {
			continue
		}
		if !c.terminated[i.ID] {
			total++
		}
		stable = stable && !c.leaving[i.ID] && i.State == instance.Running
	}
	forced := a.reason == instance.ReasonExpired && c.overdue() > 0
	if total > c.size && !forced {
		return fmt.Errorf("there are %d of %d already", total, c.size)
	}
	if forced && c.staying()-c.size >= c.overdue() {
		return fmt.Errorf("all that are overdue are replaced")
	}
	optional := a.reason == instance.ReasonConfigDrift || a.reason == instance.ReasonExpired && !forced
	if optional && !stable {
		return fmt.Errorf("the group is not stable")
	}
	if optional && c.staying() != c.size {
		return fmt.Errorf("%d of %d stay", c.staying(), c.size)
	}
	if a.reason == reasonScaleUp && c.staying() >= c.size {
		return fmt.Errorf("%d of %d stay", c.staying(), c.size)
	}
	c.created++
	return nil
}

// staying counts the managed instances that are not being deleted.
func (c *planChecker) staying() int {
	staying := c.created
	for _, i := range c.byID {
		if !i.OnDemand && !c.leaving[i.ID] {
			staying++
		}
	}
	return staying
}

// overdue counts those of them that have reached the forced age.
func (c *planChecker) overdue() int {
	overdue := 0
	for _, i := range c.byID {
		if !i.OnDemand && !c.leaving[i.ID] && !i.Down() && c.reached(i, c.expiry.ForcedAge) {
			overdue++
		}
	}
	return overdue
}

func (c *planChecker) reached(i *instance.Instance, age time.Duration) bool {
	return age > 0 && c.now.Sub(i.CreatedAt) >= age
}
