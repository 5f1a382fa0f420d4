// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// judge looks at one plan, action by action. What it knows it counts itself, as
// the rules are written and not as the planner does it.
type judge struct {
	state
	now  time.Time
	byID map[string]*instance.Instance
	// told are those that have been told to end, gone those that leave too.
	told, leaves map[string]bool
	// youngest is true when of those that are well the youngest are to go.
	youngest bool
	created  int
	// rank is that of the last action: it never falls.
	rank int
}

// check returns what a plan does that it must not.
func check(s state, actions []action, now time.Time) error {
	j := &judge{state: s, now: now, byID: map[string]*instance.Instance{}, told: map[string]bool{}, leaves: map[string]bool{}}
	for n := range s.instances {
		i := &s.instances[n]
		j.byID[i.ID] = i
		j.told[i.ID] = i.DeleteReason != "" || i.State == instance.Terminating
		j.leaves[i.ID] = j.told[i.ID] || i.Drain != nil
		// What it goes for first counts. One that the plan gives up has no reason yet.
		why := i.DeleteReason
		if i.Drain != nil {
			why = i.Drain.Reason
		}
		leaves := j.leaves[i.ID] || j.finishes(i)
		replaced := leaves && why != instance.ReasonScaleDown || !leaves && !j.well(i)
		j.youngest = j.youngest || s.replaced || replaced && !i.OnDemand && s.removeFirst[i.ID]
	}
	for _, a := range actions {
		if err := j.see(a); err != nil {
			return fmt.Errorf("%v: %w", a, err)
		}
	}
	return nil
}

func (j *judge) see(a action) error {
	i := j.byID[a.id]
	if i == nil && a.verb != create {
		return fmt.Errorf("there is no such instance")
	}
	rank := j.rankOf(a, i)
	if rank < j.rank {
		return fmt.Errorf("comes after what is less urgent")
	}
	j.rank = rank
	switch a.verb {
	case confirm:
		if !i.Known || j.providerIDs[a.id] != a.providerID {
			return fmt.Errorf("the provider says otherwise")
		}
	case forget:
		if i.DeleteReason == "" || i.Known {
			return fmt.Errorf("it may be there yet")
		}
	case endAgain:
		if i.DeleteReason != a.reason || !i.Known {
			return fmt.Errorf("it was not told to end")
		}
	case drain, end:
		return j.seeLeave(a, i)
	case create:
		return j.seeCreate(a)
	case order:
		if i.Known || i.State != instance.Pending || j.leaves[i.ID] {
			return fmt.Errorf("it must not be ordered")
		}
	}
	return nil
}

// rankOf returns the place of an action among the priorities.
func (j *judge) rankOf(a action, i *instance.Instance) int {
	switch {
	case a.verb == order && i.OnDemand:
		return 9
	case a.verb == order:
		return 6
	case a.verb == create && a.reason == reasonScaleUp:
		return 7
	case a.verb == create && a.reason == instance.ReasonConfigDrift:
		return 5
	case a.verb == create && a.reason == instance.ReasonExpired && j.overdue() > 0:
		return 3
	case a.verb == create && a.reason == instance.ReasonExpired:
		return 5
	case a.verb == create:
		return 4
	case j.finishes(i) || a.verb != drain && a.verb != end:
		return 1
	case i.OnDemand:
		return 8
	case i.Gone() && j.staying() <= j.size+j.created:
		// It is not one too many: it is replaced.
		return 4
	default:
		return 2
	}
}

// finishes tells whether it was decided before that an instance goes.
func (j *judge) finishes(i *instance.Instance) bool {
	// Age is not enough: it must have been tried since.
	tried := j.tried[i.ID].Sub(i.CreatedAt) >= j.registrationTimeout
	unregistered := i.State == instance.Pending && !i.Known && j.reached(i, j.registrationTimeout) && tried
	return i.DeleteReason != "" || i.Drain != nil || unregistered
}

func (j *judge) seeLeave(a action, i *instance.Instance) error {
	if i.DeleteReason != "" {
		return fmt.Errorf("it was told to end before")
	}
	if j.leaves[a.id] && (a.verb == drain || i.Drain == nil) {
		return fmt.Errorf("it leaves already")
	}
	runs := i.State == instance.Running || i.State == instance.Impaired
	switch {
	case a.verb == drain && (!runs || j.drainTimeout == 0):
		return fmt.Errorf("there is nothing to drain")
	case a.verb == drain && !a.deleteAt.Equal(j.now.Add(j.drainTimeout)):
		return fmt.Errorf("the drain does not take %v", j.drainTimeout)
	case a.verb == end && runs && i.Drain == nil && j.drainTimeout > 0:
		return fmt.Errorf("it has to drain")
	case a.verb == end && runs && i.Drain != nil && !i.Drain.Acknowledged && j.now.Before(i.Drain.DeleteAt):
		return fmt.Errorf("it has time to drain yet")
	}
	finished := j.finishes(i)
	j.leaves[a.id] = true
	j.told[a.id] = j.told[a.id] || a.verb == end
	switch {
	case finished:
		return nil
	case i.OnDemand:
		if !i.Gone() && !j.reached(i, j.expiry.OnDemandAge) && !j.deleted {
			return fmt.Errorf("nothing ends an on-demand instance like this")
		}
		return nil
	case i.Gone():
		return nil
	}
	// It may only go when it is one too many and all the others are there.
	if j.staying() < j.size {
		return fmt.Errorf("leaves %d of %d", j.staying(), j.size)
	}
	there := 0
	for _, other := range j.byID {
		if !other.OnDemand && !j.leaves[other.ID] && !other.Gone() && other.Known {
			there++
		}
	}
	if i.Known && there < j.size {
		return fmt.Errorf("leaves %d of %d that are there", there, j.size)
	}
	return j.seeOrder(a, i)
}

// seeOrder checks that no other instance should have gone first.
func (j *judge) seeOrder(a action, i *instance.Instance) error {
	replacing, pending := false, false
	for _, other := range j.byID {
		if other.OnDemand {
			continue
		}
		unhealthy := other.Drain != nil && other.Drain.Reason == instance.ReasonUnhealthy || other.DeleteReason == instance.ReasonUnhealthy
		replacing = replacing || unhealthy && !j.removeFirst[other.ID]
		if j.leaves[other.ID] {
			continue
		}
		pending = pending || other.State == instance.Pending
		if j.removeFirst[i.ID] {
			continue
		}
		if j.removeFirst[other.ID] && (i.Known || !other.Known) {
			return fmt.Errorf("goes before %s, which is chosen", other.ID)
		}
		if other.Gone() {
			return fmt.Errorf("goes before %s, on which nothing runs", other.ID)
		}
		if a.reason == instance.ReasonScaleDown && i.Known {
			first := other.CreatedAt.Before(i.CreatedAt) || other.CreatedAt.Equal(i.CreatedAt) && other.ID < i.ID
			if j.youngest {
				first = !first && j.troubleless(other)
			}
			if first || other.InfraConfigHash != j.infraConfigHash && !j.deleted || other.State == instance.Impaired {
				return fmt.Errorf("goes before %s", other.ID)
			}
		}
	}
	if replacing && pending && i.State == instance.Running && i.Known && !j.reached(i, j.expiry.ForcedAge) && !j.removeFirst[i.ID] {
		return fmt.Errorf("goes before the unhealthy one is replaced")
	}
	return nil
}

// troubleless tells whether nothing is wrong with an instance that is there.
func (j *judge) troubleless(i *instance.Instance) bool { return j.well(i) && i.Known }

// well tells whether an instance needs no other in its place.
func (j *judge) well(i *instance.Instance) bool {
	return !i.Gone() && i.State != instance.Impaired && (j.infraConfigHash == "" || i.InfraConfigHash == j.infraConfigHash) &&
		!j.reached(i, j.expiry.ForcedAge) && !j.reached(i, j.expiry.EligibleAge)
}

func (j *judge) seeCreate(a action) error {
	total := j.created
	quiet := j.created == 0
	for _, i := range j.byID {
		if i.OnDemand {
			continue
		}
		if !j.told[i.ID] {
			total++
		}
		quiet = quiet && !j.leaves[i.ID] && i.State == instance.Running
	}
	forced := a.reason == instance.ReasonExpired && j.overdue() > 0
	if total > j.size && !forced {
		return fmt.Errorf("there are %d of %d already", total, j.size)
	}
	if forced && j.staying()-j.size >= j.overdue() {
		return fmt.Errorf("all that are overdue are replaced")
	}
	optional := a.reason == instance.ReasonConfigDrift || a.reason == instance.ReasonExpired && !forced
	if optional && !quiet {
		return fmt.Errorf("the group is not quiet")
	}
	if optional && j.staying() != j.size {
		return fmt.Errorf("%d of %d stay", j.staying(), j.size)
	}
	if a.reason == reasonScaleUp && j.staying() >= j.size {
		return fmt.Errorf("%d of %d stay", j.staying(), j.size)
	}
	j.created++
	return nil
}

// staying counts the managed instances that nobody has decided to end.
func (j *judge) staying() int {
	staying := j.created
	for _, i := range j.byID {
		if !i.OnDemand && !j.leaves[i.ID] {
			staying++
		}
	}
	return staying
}

// overdue counts those of them that have reached the forced age.
func (j *judge) overdue() int {
	overdue := 0
	for _, i := range j.byID {
		if !i.OnDemand && !j.leaves[i.ID] && !i.Gone() && j.reached(i, j.expiry.ForcedAge) {
			overdue++
		}
	}
	return overdue
}

func (j *judge) reached(i *instance.Instance, age time.Duration) bool {
	return age > 0 && j.now.Sub(i.CreatedAt) >= age
}
