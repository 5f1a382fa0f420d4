// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
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

// TestInstancesOfALostGroupStay until an operator creates or deletes the group, also the
// ones that have a record.
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

		// What nothing runs on is replaced as far as the size demands it, as ever.
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
