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

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/storage"
)

// addStray creates an instance that only the cloud knows.
func (s *server) addStray(key instance.GroupKey) string {
	s.t.Helper()
	id, err := puidv7.New("knd")
	require.NoError(s.t, err)
	s.cloud.put(instance.VM{ID: id.String(), ProviderID: "vm-" + id.String(), Group: key, State: instance.Running})
	return id.String()
}

func TestAllGroupsAreReconciledFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.stop()
		_, _, err := s.groups.Upsert(t.Context(), workersKey, sizeOf(1))
		require.NoError(s.t, err)
		s.lead()
		s.wantCalls("create default/workers")
	})
}

func TestInstancesWithoutARecordCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.scale(workersKey, 0)
		s.stop()
		_, _, err := s.groups.Upsert(t.Context(), workersKey, sizeOf(1))
		require.NoError(t, err)
		id := s.addStray(workersKey)
		// The instances are known before the first group is reconciled. Their configuration
		// is unknown, so they are replaced once an operator has confirmed the group.
		s.lead()
		s.wantCalls()
		s.want()
		s.scale(workersKey, 1)
		s.wantCalls("create default/workers")
		s.want("draining " + id + " config-drift")
	})
}

func TestChangesAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Shard.GarbageCollection.Interval = 2 * time.Minute
		s := start(t, c)
		wantShown := func(key instance.GroupKey, ids ...string) {
			t.Helper()
			s.mu.Lock()
			defer s.mu.Unlock()
			if got := s.reported[key]; !slices.Equal(got, ids) {
				t.Errorf("reported %q, want %q", got, ids)
			}
		}
		id := s.run(workersKey, 1)[0]
		wantShown(workersKey, "vm-"+id)
		s.scale(noDrainKey, 1)
		wantShown(noDrainKey, "")
		s.scale(noDrainKey, 0)
		s.settle()
		wantShown(noDrainKey)
		// If an instance is adopted while another is missing, it takes the place of the
		// missing instance, and no action is needed.
		s.run(otherKey, 3)
		s.scale(otherKey, 1)
		s.cloud.limit(map[string]int{"subnet-1": 0, "subnet-2": 0})
		s.scale(otherKey, 2)
		stray := s.addStray(otherKey)
		s.cloud.takeCalls()
		s.takeEvents()
		s.pass(2 * time.Minute)
		s.wantCalls()
		s.want()
		s.mu.Lock()
		defer s.mu.Unlock()
		if got := s.reported[otherKey]; len(got) != 4 || !slices.Contains(got, "vm-"+stray) {
			t.Errorf("reported %q, want vm-%s too", got, stray)
		}
	})
}

func TestInstancesOfADeletedGroupAreDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.remove(otherKey)
		s.stop()
		id := s.addStray(otherKey)
		s.lead()
		s.want("draining " + id + " scale-down")
		s.pass(5 * time.Minute)
		s.settle()
		s.want("deleting "+id+" scale-down", "deleted "+id+" scale-down")
	})
}

func TestGarbageIsCollectedRegularly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Shard.GarbageCollection.Interval = 2 * time.Minute
		s := start(t, c)
		s.remove(otherKey)
		deleted := s.run(noDrainKey, 1)[0]
		s.scale(noDrainKey, 0)
		s.settle()
		s.cloud.takeCalls()
		s.takeEvents()

		// A deleted instance reappears, and an unknown instance appears.
		s.cloud.put(instance.VM{ID: deleted, Group: noDrainKey, State: instance.Running})
		stray := s.addStray(otherKey)
		s.pass(2 * time.Minute)
		if calls := s.cloud.takeCalls(); len(calls) != 1 || calls[0].id != deleted {
			t.Errorf("called %v, want the deletion of %s", calls, deleted)
		}
		assert.ElementsMatch(t, []string{"deleting " + deleted + " returned", "draining " + stray + " scale-down"}, s.takeEvents())

		// The instance is kept for an hour after its deletion.
		s.settle()
		s.pass(50 * time.Minute)
		if _, found := s.instances.Get(deleted); !found {
			t.Error("was purged too early")
		}
		s.pass(20 * time.Minute)
		if _, found := s.instances.Get(deleted); found {
			t.Error("is never purged")
		}
	})
}

func TestGarbageCollectionCanBeEnabled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.remove(otherKey)
		id := s.addStray(otherKey)
		s.pass(time.Hour)
		s.want()
		c := newConfig()
		c.Shard.GarbageCollection.Interval = time.Minute
		require.NoError(t, s.groups.Reconfigure(t.Context(), c))
		s.pass(3 * time.Minute)
		s.want("draining " + id + " scale-down")
	})
}

func TestFailedAdoptionDoesNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.scale(workersKey, 1)
		s.stop()
		s.cloud.put(instance.VM{ID: "no id", Group: otherKey, State: instance.Running})
		s.lead()
		s.wantCalls("create default/workers")
	})
}

func TestRecordsOfDeletedInstancesAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.run(noDrainKey, 2)
		infos, err := s.storage.List(t.Context(), storage.InstancePrefix("a"))
		if err != nil || len(infos) != 2 {
			t.Fatalf("%v, %v", infos, err)
		}
		s.scale(noDrainKey, 0)
		s.settle()
		if infos, err = s.storage.List(t.Context(), storage.InstancePrefix("a")); err != nil || len(infos) != 0 {
			t.Errorf("%v, %v", infos, err)
		}
		if events := s.takeEvents(); len(slices.DeleteFunc(events, func(e string) bool { return e[:7] != "deleted" })) != 2 {
			t.Errorf("reported %q, want two that are deleted", events)
		}
	})
}
