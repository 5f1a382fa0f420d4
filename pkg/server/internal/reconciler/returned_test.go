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

// withCollection returns a configuration with garbage collection.
func withCollection() *config.Config {
	c := newConfig()
	c.Shard.GarbageCollection.Interval = 2 * time.Minute
	return c
}

// giveUp lets the cloud leave out an instance until it was given up and replaced, and
// returns it as it was.
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
				// It is the youngest, so that the surplus of the group would be another one.
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

// A returned instance does not count for the size: the group is not short of it.
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
