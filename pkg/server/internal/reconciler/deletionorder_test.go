// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/testing/tier"
)

// In any state of the walk, a smaller size deletes no instance that runs before those that are
// earlier in the order.
func TestScaleDownFollowsTheDeletionOrder(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(40, 300)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w, deleted := newWorld(seed), 0
			if seed%2 == 1 {
				w.agents = map[string]instance.Agent{}
			}
			for step := range 400 {
				w.disturb()
				s := w.observe()
				actions, _ := plan(s, w.now)
				w.carryOut(actions, math.MaxInt)
				s = w.observe()
				s.deleted, s.removeFirst, s.replaced = false, map[string]bool{}, false
				s.size = w.random.IntN(len(s.instances) + 1)
				got, err := followsOrder(s, w.now)
				require.NoError(t, err, "step %d: size %d, instances %s", step, s.size, describe(s.instances))
				deleted += got
			}
			assert.Positive(t, deleted, "instances that were deleted because of their place in the order")
		})
	}
}

// followsOrder returns how many instances a plan deletes for the size, and an error if another
// instance would be before one of them.
func followsOrder(s state, now time.Time) (deleted int, err error) {
	planner := newPlanner(s, now)
	stays := map[string]bool{}
	for _, i := range planner.staying {
		stays[i.ID] = i.Agent.Notice == nil || i.Down()
	}
	order := slices.DeleteFunc(deletionOrder(s, now), func(next instance.NextDeletion) bool { return !stays[next.ID] })
	surplus := max(len(order)-s.size, 0)
	actions, _ := plan(s, now)
	for _, a := range actions {
		if a.verb != drain && a.verb != terminate || !stays[a.id] {
			continue
		}
		at := slices.IndexFunc(order, func(next instance.NextDeletion) bool { return next.ID == a.id })
		i := &s.instances[slices.IndexFunc(s.instances, func(i instance.Instance) bool { return i.ID == a.id })]
		problem := planner.problemOf(i)
		if at >= surplus && problem != down && problem != abandoned {
			return 0, fmt.Errorf("%v deletes %s, which is number %d of the order %v, and %d are surplus", actions, a.id, at, order, surplus)
		}
		if problem > abandoned {
			deleted++
		}
	}
	return deleted, nil
}

// An instance that reaches an age goes to the front of the order, and operators get to know it
// although no instance has changed.
func TestAgeChangesTheDeletionOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group := &groups.Group{Key: instance.GroupKey{Tenant: "default", Group: "workers"}, Size: 2}
		expiry := config.Expiry{EligibleAge: time.Hour}
		orders := &DeletionOrders{Expiry: func() config.Expiry { return expiry }}
		instances := make([]instance.Instance, 2)
		for n, id := range []string{"i1", "i2"} {
			instances[n] = instance.Instance{Record: instance.Record{ID: id, CreatedAt: time.Now()}, State: instance.Running, Known: true}
		}
		assert.False(t, orders.outdated(group, instances, time.Now()), "nobody knows the order yet")
		assert.Equal(t, []instance.NextDeletion{{ID: "i1"}, {ID: "i2"}}, orderOf(orders, group, instances))
		assert.False(t, orders.outdated(group, instances, time.Now()))
		instances[0].CreatedAt = instances[0].CreatedAt.Add(time.Minute)
		assert.Equal(t, []instance.NextDeletion{{ID: "i2"}, {ID: "i1"}}, orderOf(orders, group, instances))
		time.Sleep(time.Hour)
		assert.True(t, orders.outdated(group, instances, time.Now()))
		assert.Equal(t, []instance.NextDeletion{{ID: "i2", Reason: instance.ReasonExpired, Outdated: instance.ReasonExpired}, {ID: "i1"}}, orderOf(orders, group, instances))
		orders.remove(group.Key)
		assert.False(t, orders.outdated(group, instances, time.Now()))
		var none *DeletionOrders
		none.remove(group.Key)
		assert.False(t, none.outdated(group, instances, time.Now()))
	})
}

func orderOf(orders *DeletionOrders, group *groups.Group, instances []instance.Instance) []instance.NextDeletion {
	order, _ := orders.Of(group, instances)
	return order
}

// The deletion of the first instances changes no order, and so costs operators no write.
func TestTheDeletionOrderStaysWhileItsFirstInstancesAreDeleted(t *testing.T) {
	for name, test := range map[string]struct {
		hash, reason string
		want         instance.NextDeletion
	}{
		"surplus":  {"hash", instance.ReasonScaleDown, instance.NextDeletion{ID: "i1"}},
		"replaced": {"older", instance.ReasonConfigDrift, instance.NextDeletion{ID: "i1", Reason: instance.ReasonConfigDrift, Outdated: instance.ReasonConfigDrift}},
	} {
		t.Run(name, func(t *testing.T) {
			group := &groups.Group{Key: instance.GroupKey{Tenant: "default", Group: "workers"}, Size: 2, InfraConfigHash: "hash"}
			orders := &DeletionOrders{Expiry: func() config.Expiry { return config.Expiry{} }}
			var instances []instance.Instance
			for n, id := range []string{"i3", "i2", "i1"} {
				created := planTime.Add(-time.Duration(n) * time.Minute)
				instances = append(instances, instance.Instance{Record: instance.Record{ID: id, CreatedAt: created, InfraConfigHash: "hash"}, State: instance.Running, Known: true})
			}
			first := &instances[2]
			first.InfraConfigHash = test.hash
			want := []instance.NextDeletion{test.want, {ID: "i2"}, {ID: "i3"}}
			assert.Equal(t, want, orderOf(orders, group, instances))
			first.Drain = &instance.Drain{Reason: test.reason}
			assert.Equal(t, want, orderOf(orders, group, instances), "while it drains")
			first.DeleteReason = test.reason
			assert.Equal(t, want, orderOf(orders, group, instances), "while it is terminated")
		})
	}
}
