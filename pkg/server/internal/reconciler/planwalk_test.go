// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/testing/tier"
)

// TestPlansOfRandomWalk makes random changes, checks every plan, and carries it
// out completely or in part. From time to time it makes no further changes, and
// then the group must reach its desired state.
func TestPlansOfRandomWalk(t *testing.T) {
	walk(t, func(*world, uint64) {})
}

// TestPlansOfRandomWalkWithGrants also changes the grant of the rotation.
func TestPlansOfRandomWalkWithGrants(t *testing.T) {
	walk(t, func(w *world, seed uint64) { w.grants = rand.New(rand.NewPCG(seed, 3)) })
}

func walk(t *testing.T, prepare func(*world, uint64)) {
	t.Helper()
	for _, seed := range tier.Seeds(t, tier.Pick(60, 300)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(seed)
			prepare(w, seed)
			if seed%2 == 1 {
				w.agents = map[string]instance.Agent{}
			}
			for step := range 1500 {
				w.disturb()
				s := w.observe()
				actions, next := plan(s, w.now)
				if err := check(s, actions, w.now); err != nil {
					t.Fatalf("step %d: %v\nplan %v\nsize %d, grant %+v, instances %s", step, err, actions, s.size, s.rotation, describe(s.instances))
				}
				if !next.IsZero() && !next.After(w.now) {
					t.Fatalf("step %d: next at %v, which is not after %v", step, next, w.now)
				}
				steps := math.MaxInt
				if w.random.IntN(3) == 0 {
					steps = w.random.IntN(4)
				}
				w.carryOut(actions, steps)
				if step%100 == 99 {
					if err := w.rest(); err != nil {
						t.Fatalf("step %d: %v", step, err)
					}
					if err := w.shrink(); err != nil {
						t.Fatalf("step %d: %v", step, err)
					}
				}
			}
		})
	}
}

// rest lets the group reach its size without further changes: the provider
// accepts all requests and no instance fails or expires.
func (w *world) rest() error {
	w.rejecting, w.expiry = false, config.Expiry{}
	w.grantAll()
	for id := range w.vms {
		w.become(id, instance.Running)
	}
	onDemand := map[string]bool{}
	for id, i := range w.records {
		_, known := w.vms[id]
		attempted := w.registrationTimeout > 0 && !w.attempted[id].Before(i.CreatedAt.Add(w.registrationTimeout))
		lost := !known && (i.ProviderID != "" || w.deleted || attempted)
		doomed := w.agents[id].Notice != nil || w.agents[id].State == instance.AgentAwaited
		if i.OnDemand && !i.BeingDeleted() && w.vms[id] != instance.Terminating && !lost && !doomed {
			onDemand[id] = true
		}
	}
	for round := range 200 {
		s := w.observe()
		actions, next := plan(s, w.now)
		if err := check(s, actions, w.now); err != nil {
			return fmt.Errorf("at rest: %w\nplan %v\nsize %d, instances %s", err, actions, s.size, describe(s.instances))
		}
		w.carryOut(actions, math.MaxInt)
		moved := len(actions) > 0
		for id, state := range w.vms {
			moved = moved || state != instance.Running
			w.settle(id)
			if w.agents != nil && state == instance.Running && w.agents[id].State != instance.AgentReporting {
				w.reports(id)
				moved = true
			}
		}
		if moved {
			continue
		}
		if !next.IsZero() {
			w.now = next
			continue
		}
		return w.settled(s, onDemand, round)
	}
	s := w.observe()
	return fmt.Errorf("does not settle: size %d, instances %s", s.size, describe(s.instances))
}

// shrink deletes requested instances of a stable group, while servers crash and others take
// over. Exactly these instances must be deleted, and no instance created.
func (w *world) shrink() error {
	w.removeFirst = map[string]bool{}
	var stay []string
	for _, id := range slices.Sorted(maps.Keys(w.records)) {
		w.removeFirst[id] = w.random.IntN(3) == 0
		switch {
		case w.records[id].OnDemand || !w.removeFirst[id]:
			// An on-demand instance does not belong to the group's size, so its
			// id has no effect.
			stay = append(stay, id)
		default:
			w.size--
		}
	}
	for range 20 {
		s := w.observe()
		actions, _ := plan(s, w.now)
		if err := check(s, actions, w.now); err != nil {
			return fmt.Errorf("shrinking: %w\nplan %v\nsize %d, instances %s", err, actions, s.size, describe(s.instances))
		}
		w.carryOut(actions, w.random.IntN(4))
		if w.random.IntN(4) == 0 {
			w.takeOver()
		}
	}
	if err := w.rest(); err != nil {
		return fmt.Errorf("shrinking: %w", err)
	}
	if left := slices.Sorted(maps.Keys(w.records)); !slices.Equal(left, stay) {
		return fmt.Errorf("%v were requested, and %v are left, want %v", w.removeFirst, left, stay)
	}
	return nil
}

// settled checks the state when there are no more actions.
func (w *world) settled(s state, onDemand map[string]bool, round int) error {
	managed := 0
	for _, i := range s.instances {
		if i.State != instance.Running || i.BeingDeleted() {
			return fmt.Errorf("after %d rounds %s is left", round, describe(s.instances))
		}
		delete(onDemand, i.ID)
		if !i.OnDemand {
			managed++
			if i.InfraConfigHash != s.infraConfigHash {
				return fmt.Errorf("%s is not rotated", i.ID)
			}
			if s.replace[i.ID] {
				return fmt.Errorf("%s is not replaced", i.ID)
			}
			if s.rotation != nil && s.rotation.After != nil && i.CreatedAt.Before(*s.rotation.After) {
				return fmt.Errorf("%s was created before %v", i.ID, s.rotation.After)
			}
		}
	}
	if managed != s.size {
		return fmt.Errorf("after %d rounds %d managed instances, want %d: %s", round, managed, s.size, describe(s.instances))
	}
	if len(onDemand) > 0 {
		return fmt.Errorf("on-demand instances %v are missing", onDemand)
	}
	if len(w.vms) != len(s.instances) {
		return fmt.Errorf("the provider has %d instances, and there are records of %d", len(w.vms), len(s.instances))
	}
	return nil
}

func describe(instances []instance.Instance) string {
	instances = slices.Clone(instances)
	slices.SortFunc(instances, func(a, b instance.Instance) int { return oldestFirst(&a, &b) })
	text := ""
	for _, i := range instances {
		text += fmt.Sprintf("\n  %s on-demand %v, state %d, known %v, provider id %q, hash %q, drain %+v, deleted for %q, created %s",
			i.ID, i.OnDemand, i.State, i.Known, i.ProviderID, i.InfraConfigHash, i.Drain, i.DeleteReason, i.CreatedAt.Format(time.TimeOnly))
	}
	return text
}

// planChecker checks the actions of one plan in order. It counts independently
// of the planner, according to the documented rules.
type planChecker struct {
	state
	now  time.Time
	byID map[string]*instance.Instance
	// terminated are the instances that are being terminated, and leaving all instances that
	// are being deleted.
	terminated, leaving map[string]bool
	// surplus are the leaving instances that this plan deletes without a replacement.
	surplus map[string]bool
	// rotating are the leaving instances that are deleted because they are outdated.
	rotating map[string]bool
	// youngest is true when the youngest healthy instances are to be deleted.
	youngest bool
	created  int
	// rank is the rank of the last action. It never decreases.
	rank int
}

// check returns an error if a plan violates a rule.
func check(s state, actions []action, now time.Time) error {
	c := &planChecker{state: s, now: now, byID: map[string]*instance.Instance{}, terminated: map[string]bool{}, leaving: map[string]bool{}, surplus: map[string]bool{}, rotating: map[string]bool{}}
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
		c.rotating[i.ID] = outdatedReason(why) && !i.OnDemand
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
	case a.verb == create && a.reason == instance.ReasonSpot:
		return 1
	case a.verb == create && a.reason == reasonScaleUp:
		return 7
	case a.verb == create && a.reason == instance.ReasonConfigDrift && c.anyAbandoned() && c.rank < 5:
		return 4
	case a.verb == create && a.reason == instance.ReasonExpired && c.staying()-c.size < c.overdue() && c.rank <= 3:
		return 3
	case a.verb == create && outdatedReason(a.reason):
		return 5
	case a.verb == create:
		return 4
	case c.continues(i) || a.verb != drain && a.verb != terminate:
		return 1
	case i.OnDemand:
		return 8
	case i.Agent.Notice != nil:
		return 1
	case c.abandoned(i) && c.rank > 2:
		// It was no surplus instance when the surplus instances were selected.
		return 4
	case i.Down() && c.staying() <= c.size+c.created:
		// It is not a surplus instance: it is replaced.
		return 4
	case c.staying() <= c.size && c.rank > 2 && !i.Down():
		return 5
	default:
		return 2
	}
}

// continues reports whether an earlier plan decided to delete an instance.
func (c *planChecker) continues(i *instance.Instance) bool {
	// Age is not enough: there must have been an attempt since.
	attempted := c.attempted[i.ID].Sub(i.CreatedAt) >= c.registrationTimeout
	registrationTimedOut := i.State == instance.Pending && !i.Known && c.reached(i, c.registrationTimeout) && attempted
	return i.DeleteReason != "" || i.Drain != nil || registrationTimedOut || c.unregistered(i)
}

func (c *planChecker) checkDeletion(a action, i *instance.Instance) error {
	if i.DeleteReason != "" {
		return fmt.Errorf("its termination was requested before")
	}
	if c.leaving[a.id] && (a.verb == drain || i.Drain == nil) {
		return fmt.Errorf("it is already being deleted")
	}
	runs := i.State == instance.Running || i.State == instance.Impaired
	deleteAt := c.now.Add(c.drainTimeout)
	if notice := i.Agent.Notice; notice != nil && !notice.Deadline.IsZero() && notice.Deadline.Before(deleteAt) {
		deleteAt = notice.Deadline
	}
	switch {
	case a.verb == drain && (!runs || c.drainTimeout == 0):
		return fmt.Errorf("there is nothing to drain")
	case a.verb == drain && !a.deleteAt.Equal(deleteAt):
		return fmt.Errorf("the drain does not take %v", c.drainTimeout)
	case a.verb == terminate && runs && i.Drain == nil && c.drainTimeout > 0 && !c.unregistered(i):
		return fmt.Errorf("it has to drain")
	case a.verb == terminate && runs && i.Drain != nil && !i.Drain.Acknowledged && c.now.Before(i.Drain.DeleteAt):
		return fmt.Errorf("its drain is not over")
	case a.verb == terminate && runs && c.now.Before(c.deregisterUntil[a.id]):
		return fmt.Errorf("it is a target of a load balancer")
	}
	continuing := c.continues(i)
	c.leaving[a.id] = true
	c.surplus[a.id] = a.reason == instance.ReasonScaleDown
	c.rotating[a.id] = outdatedReason(a.reason) && !i.OnDemand
	c.terminated[a.id] = c.terminated[a.id] || a.verb == terminate
	switch {
	case continuing:
		return nil
	case i.OnDemand:
		if !i.Down() && !c.reached(i, c.expiry.OnDemandAge) && !c.deleted && i.Agent.Notice == nil {
			return fmt.Errorf("there is no reason to delete this on-demand instance")
		}
		return nil
	case i.Down() || i.Agent.Notice != nil || c.abandoned(i):
		return nil
	}
	// Only a surplus instance may be deleted, and only when all the others exist, unless the grant
	// of a rotation allows that some do not.
	least := c.size
	if c.replaceable(i) && c.grantsNow() && (c.createAfter.IsZero() || c.staying() < c.size) {
		least -= int(c.granted().MaxUnavailable)
	}
	if c.staying() < c.size {
		if err := c.checkRotation(a, i); err != nil {
			return fmt.Errorf("leaves %d of %d: %w", c.staying(), c.size, err)
		}
	}
	existing := 0
	for _, other := range c.byID {
		if !other.OnDemand && !c.leaving[other.ID] && !other.Down() && exists(other) && other.Agent.State != instance.AgentUnknown {
			existing++
		}
	}
	if exists(i) && existing < least {
		return fmt.Errorf("leaves %d of %d existing ones, want %d", existing, c.size, least)
	}
	if c.staying() < c.size {
		return nil
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
		if c.removeFirst[other.ID] && (exists(i) || !exists(other)) {
			return fmt.Errorf("deleted before %s, which is a candidate", other.ID)
		}
		if other.Down() {
			return fmt.Errorf("deleted before %s, which is down", other.ID)
		}
		if a.reason == instance.ReasonScaleDown && exists(i) {
			first := other.CreatedAt.Before(i.CreatedAt) || other.CreatedAt.Equal(i.CreatedAt) && other.ID < i.ID
			if c.youngest {
				first = !first && c.hasNoProblem(other)
			}
			if first || other.InfraConfigHash != c.infraConfigHash && !c.deleted || other.State == instance.Impaired || c.replace[other.ID] {
				return fmt.Errorf("deleted before %s", other.ID)
			}
		}
	}
	if replacing && pending && i.State == instance.Running && exists(i) && !c.reached(i, c.expiry.ForcedAge) && !c.removeFirst[i.ID] && !c.replace[i.ID] {
		return fmt.Errorf("deleted before the unhealthy one is replaced")
	}
	return nil
}

// hasNoProblem reports whether an existing instance has no problem.
func (c *planChecker) hasNoProblem(i *instance.Instance) bool { return c.healthy(i) && exists(i) }

// healthy reports whether an instance needs no replacement.
func (c *planChecker) healthy(i *instance.Instance) bool {
	return !i.Down() && i.State != instance.Impaired && !c.replace[i.ID] && !c.outdated(i)
}

func (c *planChecker) checkCreation(a action) error {
	total := c.created
	stable := c.created == 0
	for _, i := range c.byID {
		if i.OnDemand {
			continue
		}
		doomed := i.Agent.Notice != nil || i.Drain != nil && (i.Drain.Reason == instance.ReasonSpot || i.Drain.Reason == instance.ReasonScaleDown) ||
			c.surplus[i.ID]
		if !c.terminated[i.ID] && !doomed {
			total++
		}
		stable = stable && !c.leaving[i.ID] && i.State == instance.Running && i.Agent.State != instance.AgentUnknown
	}
	if err := c.checkDelay(); err != nil {
		return err
	}
	forced := c.rank == 3
	if a.reason == instance.ReasonSpot {
		// It replaces an instance that its provider terminates, even while others drain.
		if c.staying() >= c.size {
			return fmt.Errorf("%d of %d stay", c.staying(), c.size)
		}
		c.created++
		return nil
	}
	surge := max(1, int(c.granted().MaxSurge))
	limit := c.size + surge - 1
	if a.reason == instance.ReasonUnhealthy && c.impaired() || a.reason == instance.ReasonReplaced {
		limit = max(limit, c.size+max(1, c.size/10)-1)
	}
	if total > limit && !forced {
		return fmt.Errorf("there are %d of %d already", total, c.size)
	}
	if forced && c.staying()-c.size >= c.overdue() {
		return fmt.Errorf("all that are overdue are replaced")
	}
	optional := c.rank == 5
	if optional && c.rotation == nil && !stable {
		return fmt.Errorf("the group is not stable")
	}
	if optional && c.rotation == nil && c.staying() != c.size {
		return fmt.Errorf("%d of %d stay", c.staying(), c.size)
	}
	if optional && total >= c.size+int(c.granted().MaxSurge) {
		return fmt.Errorf("the surge of the grant is used")
	}
	if optional {
		c.created++
		return c.checkRotation(a, nil)
	}
	if kept := c.staying() + c.leavingForRotation(); a.reason == reasonScaleUp && c.granted().MaxSurge == 0 && c.granted().MaxUnavailable > 0 && kept >= c.size {
		return fmt.Errorf("%d of %d exist, and the grant has no surge", kept, c.size)
	}
	if a.reason == reasonScaleUp && c.staying() >= c.size {
		return fmt.Errorf("%d of %d stay", c.staying(), c.size)
	}
	c.created++
	return nil
}

// checkDelay checks that a group whose last instance has not registered creates one at a
// time.
func (c *planChecker) checkDelay() error {
	if c.createAfter.IsZero() {
		return nil
	}
	if c.now.Before(c.createAfter) || c.created > 0 {
		return fmt.Errorf("the last instance has not registered")
	}
	for _, i := range c.byID {
		if !i.OnDemand && !c.leaving[i.ID] && i.State == instance.Pending {
			return fmt.Errorf("%s is pending", i.ID)
		}
	}
	return nil
}

// anyAbandoned reports whether an instance is replaced because it has an older configuration
// and is still coming up.
func (c *planChecker) anyAbandoned() bool {
	for _, i := range c.byID {
		if !i.OnDemand && c.abandoned(i) {
			return true
		}
	}
	return false
}

// impaired reports whether an instance that stays is impaired.
func (c *planChecker) impaired() bool {
	for _, i := range c.byID {
		if !i.OnDemand && !c.leaving[i.ID] && i.State == instance.Impaired {
			return true
		}
	}
	return false
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

// overdue counts the staying instances that have reached the forced age.
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
