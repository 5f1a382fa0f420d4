// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

// addStrayOf creates an instance that only the cloud knows.
func (s *server) addStrayOf(key instance.GroupKey, origin instance.Origin) string {
	s.t.Helper()
	id := s.addStray(key)
	vm, _ := s.cloud.Get(id)
	vm.Origin = origin
	s.cloud.put(vm)
	return id
}

func (s *server) hash(key instance.GroupKey) string {
	s.t.Helper()
	group, found := s.groups.Get(key)
	require.True(s.t, found)
	return group.InfraConfigHash
}

// TestInstancesOfALostGroupStay until an operator creates or deletes the group, even if they
// have a record.
func TestInstancesOfALostGroupStay(t *testing.T) {
	for name, decide := range map[string]func(*server){
		"created": func(s *server) { s.scale(otherKey, 3) },
		"deleted": func(s *server) { s.remove(otherKey) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t, newConfig())
				s.scale(workersKey, 0)
				origin := instance.Origin{InfraConfigHash: s.hash(workersKey)}
				s.stop()
				s.addStrayOf(otherKey, origin)
				s.addStrayOf(otherKey, origin)
				s.lead()
				recorded := instance.Record{
					ID: s.addStrayOf(otherKey, origin), Tenant: otherKey.Tenant, Group: otherKey.Group,
					InfraConfigHash: origin.InfraConfigHash, CreatedAt: time.Now(),
				}
				require.NoError(t, s.instances.Add(t.Context(), recorded))
				s.reconcile(otherKey)
				s.pass(time.Hour)
				s.wantCalls()
				s.want()
				assert.Len(t, s.instances.List(otherKey), 3)
				decide(s)
				s.pass(5 * time.Minute)
				s.settle()
				want := 3
				if name == "deleted" {
					want = 0
				}
				assert.Len(t, s.cloud.ids(otherKey), want)
			})
		})
	}
}

// TestUnconfirmedGroupDoesNotShrink until an operator has sent its size, also under the
// next leader.
func TestUnconfirmedGroupDoesNotShrink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Shard.Expiry.EligibleAge, c.Shard.Expiry.ForcedAge = 2*time.Hour, 3*time.Hour
		s := start(t, c)
		recorded := s.run(workersKey, 2)
		origin := instance.Origin{InfraConfigHash: s.hash(workersKey)}
		s.stop()
		stray := []string{s.addStrayOf(workersKey, origin), s.addStrayOf(workersKey, origin)}
		onDemand := s.addStrayOf(workersKey, instance.Origin{OnDemand: true, IdempotencyKey: "key"})
		for range 2 {
			s.loseCache()
			s.lead()
			s.pass(4 * time.Hour)
			s.wantCalls()
			s.want()
			s.stop()
		}
		s.lead()
		i, found := s.instances.ByIdempotencyKey("default", "key")
		assert.True(t, found)
		assert.Equal(t, onDemand, i.ID)

		// An instance on which nothing runs is replaced as far as the size demands it, as
		// ever.
		s.cloud.vanish(recorded[0])
		s.settle()
		s.wantCalls("delete default/workers")
		s.want("deleting "+recorded[0]+" unhealthy", "deleted "+recorded[0]+" unhealthy")

		s.reconfigure(func(*config.Config) {})
		s.scale(workersKey, 3)
		s.pass(time.Hour)
		s.wantCalls()
		s.scale(workersKey, 0)
		s.pass(5 * time.Minute)
		s.settle()
		assert.Equal(t, []string{onDemand}, s.cloud.ids(workersKey))
		assert.NotContains(t, stray, onDemand)
	})
}

// TestGroupIsUnconfirmedBeforeItsInstancesHaveARecord also if the storage fails meanwhile:
// with a record an instance no longer shows that the settings of its group may be outdated.
func TestGroupIsUnconfirmedBeforeItsInstancesHaveARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.scale(workersKey, 0)
		origin := instance.Origin{InfraConfigHash: s.hash(workersKey)}
		s.stop()
		stray := s.addStrayOf(workersKey, origin)
		failures := 1
		s.storage = storagetest.Intercepted{Store: s.storage, Intercept: func(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
			if call.IsWrite() && call.Key == storage.GroupsKey("a") && failures > 0 {
				failures--
				return errors.New("the storage is down")
			}
			return do(ctx)
		}}
		s.lead()
		assert.Zero(t, failures, "failures that are left")
		s.pass(time.Hour)
		s.wantCalls()
		assert.Equal(t, []string{stray}, s.cloud.ids(workersKey))
	})
}

// TestReplacedInstanceIsNotReplacedAgain after a restore from before its replacement.
func TestReplacedInstanceIsNotReplacedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		lost := s.run(workersKey, 2)[0]
		origin := instance.Origin{InfraConfigHash: s.hash(workersKey)}
		s.stop()
		s.loseCache()
		s.cloud.Remove(lost)
		s.addStrayOf(workersKey, origin)
		s.lead()
		s.settle()
		s.scale(workersKey, 2)
		s.settle()
		assert.NotContains(t, describeCalls(s.cloud.takeCalls()), "create default/workers")
		assert.Len(t, s.cloud.ids(workersKey), 2)
	})
}

// TestDeletedGroupIsForgotten once it has had no instances for an hour.
func TestDeletedGroupIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Shard.GarbageCollection.Interval = time.Minute
		s := start(t, c)
		s.run(workersKey, 1)
		s.remove(workersKey)
		s.pass(2 * time.Hour) // the drain
		assert.True(t, s.groups.Deleted(workersKey), "has an instance")
		s.settle()
		s.pass(50 * time.Minute)
		assert.True(t, s.groups.Deleted(workersKey), "had an instance until now")
		s.pass(20 * time.Minute)
		assert.False(t, s.groups.Deleted(workersKey))
	})
}

// TestSizeThatWasLowered since the backup: the instances that were deleted since are not
// replaced before the operator has sent the size.
func TestSizeThatWasLowered(t *testing.T) {
	for name, sends := range map[string]bool{"the operator sends the size": true, "no operator": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t, newConfig())
				ids := s.run(workersKey, 5)
				s.stop()
				s.loseCache()
				for _, id := range ids[3:] {
					s.cloud.Remove(id)
				}
				s.lead()
				s.pass(10 * time.Second)
				s.wantCalls()
				if sends {
					s.scale(workersKey, 3)
					s.pass(time.Hour)
					s.settle()
					assert.Equal(t, ids[:3], s.cloud.ids(workersKey))
					assert.NotContains(t, describeCalls(s.cloud.takeCalls()), "create default/workers")
					return
				}
				s.pass(5 * time.Second)
				created := slices.DeleteFunc(describeCalls(s.cloud.takeCalls()), func(call string) bool { return call != "create default/workers" })
				assert.Len(t, created, 2)
				s.settle()
				assert.Len(t, s.cloud.ids(workersKey), 5)
				assert.Subset(t, s.cloud.ids(workersKey), ids[:3])
				// From now on a lost instance is replaced at once.
				s.pass(lossWindow)
				s.cloud.takeCalls()
				s.cloud.vanish(ids[0])
				synctest.Wait()
				assert.Contains(t, describeCalls(s.cloud.takeCalls()), "create default/workers")
			})
		})
	}
}

// TestChangedGroupDoesNotWait for another change although an instance was missing when the
// server started.
func TestChangedGroupDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		lost := s.run(workersKey, 2)[0]
		s.stop()
		s.cloud.Remove(lost)
		s.lead()
		s.wantCalls()
		s.scale(workersKey, 3)
		assert.Contains(t, describeCalls(s.cloud.takeCalls()), "create default/workers")
	})
}

// withCollection returns a configuration with garbage collection.
func withCollection() *config.Config {
	c := newConfig()
	c.Shard.GarbageCollection.Interval = 2 * time.Minute
	return c
}

// giveUp lets the cloud leave out an instance until it was given up and replaced, and returns
// its earlier state.
func (s *server) giveUp(id string) instance.VM {
	s.t.Helper()
	vm, found := s.cloud.Get(id)
	require.True(s.t, found)
	s.cloud.vanish(id)
	s.settle()
	given, _ := s.instances.Get(id)
	require.False(s.t, given.DeletedAt.IsZero(), "given up")
	s.cloud.takeCalls()
	s.takeEvents()
	return vm
}

// Pods run on an instance that the provider had left out of its list by mistake.
func TestReturnedInstanceIsDrained(t *testing.T) {
	for name, restart := range map[string]func(*server){
		"the same leader":       func(*server) {},
		"another leader":        func(s *server) { s.stop(); s.lead() },
		"one without the cache": func(s *server) { s.stop(); s.loseCache(); s.lead() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t, withCollection())
				ids := s.run(workersKey, 3)
				// The instance is the youngest, so that the surplus of the group would be
				// another instance.
				lost := ids[2]
				vm := s.giveUp(lost)
				require.Len(t, s.cloud.ids(workersKey), 3, "replaced")

				s.cloud.put(vm)
				s.pass(2 * time.Minute)
				s.want("draining " + lost + " returned")
				s.wantCalls()
				restart(s)
				s.pass(time.Minute)
				for _, i := range s.instances.Draining("default") {
					assert.Equal(t, lost, i.ID, "draining")
				}
				s.wantCalls()
				s.acknowledge(workersKey, lost)
				s.settle()
				s.wantCalls("delete default/workers")
				left := s.cloud.ids(workersKey)
				assert.Len(t, left, 3)
				assert.NotContains(t, left, lost)
				assert.Subset(t, left, ids[:2])
				s.pass(time.Hour)
				s.wantCalls()
			})
		})
	}
}

// No client requests the deletion of an on-demand instance a second time.
func TestReturnedOnDemandInstanceIsDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, withCollection())
		s.scale(workersKey, 0)
		id := s.onDemand(workersKey, func(*instance.Record) {})
		s.settle()
		s.takeEvents()
		vm, _ := s.cloud.Get(id)
		require.NoError(t, s.instances.RequestDeletion(t.Context(), id))
		s.reconcile(workersKey)
		s.settle()
		s.cloud.takeCalls()
		s.takeEvents()

		s.cloud.put(vm)
		s.pass(2 * time.Minute)
		s.want("draining " + id + " returned")
		s.wantCalls()
		s.stop()
		s.loseCache()
		s.lead()
		s.want("draining " + id + " returned")
		s.pass(5 * time.Minute)
		s.settle()
		s.want("deleting "+id+" returned", "deleted "+id+" returned")
		assert.Empty(t, s.cloud.ids(workersKey))
	})
}

// A returned instance does not count for the size: the group does not need it.
func TestReturnedInstanceDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, withCollection())
		ids := s.run(workersKey, 3)
		s.cloud.put(s.giveUp(ids[0]))
		s.pass(2 * time.Minute)
		s.cloud.takeCalls()
		s.takeEvents()
		// While it drains, the group grows and replaces as ever.
		s.scale(workersKey, 4)
		s.wantCalls("create default/workers")
		s.settle()
		s.cloud.vanish(ids[1])
		synctest.Wait()
		assert.Contains(t, describeCalls(s.cloud.takeCalls()), "create default/workers")
		s.settle()

		// It disappears again.
		s.cloud.vanish(ids[0])
		s.settle()
		s.pass(5 * time.Minute)
		assert.Len(t, s.cloud.ids(workersKey), 4)
		assert.Len(t, s.instances.List(workersKey), 4)
		assert.False(t, slices.Contains(s.cloud.ids(workersKey), ids[0]))
	})
}

// Without a drain timeout instances are not drained.
func TestReturnedInstanceOfAGroupWithoutDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, withCollection())
		id := s.run(noDrainKey, 1)[0]
		vm, _ := s.cloud.Get(id)
		s.scale(noDrainKey, 0)
		s.settle()
		s.cloud.takeCalls()
		s.takeEvents()
		s.cloud.put(vm)
		s.pass(2 * time.Minute)
		s.wantCalls("delete default/nodrain")
		s.settle()
		s.want("deleting "+id+" returned", "deleted "+id+" returned")
	})
}
