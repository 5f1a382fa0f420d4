// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/storage"
)

// stray makes an instance that only the cloud knows.
func (s *server) stray(key instance.GroupKey) string {
	s.t.Helper()
	id, err := puidv7.New("knd")
	if err != nil {
		s.t.Fatal(err)
	}
	s.cloud.put(instance.VM{ID: id.String(), ProviderID: "vm-" + id.String(), Group: key, State: instance.Running})
	return id.String()
}

func TestAllGroupsAreLookedAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.end()
		_, _, err := s.groups.Upsert(t.Context(), workersKey, sizeOf(1))
		s.must(err)
		s.lead()
		s.wantCalls("create default/workers")
	})
}

func TestInstancesWithoutARecordCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.scale(workersKey, 0)
		s.end()
		if _, _, err := s.groups.Upsert(t.Context(), workersKey, sizeOf(1)); err != nil {
			t.Fatal(err)
		}
		id := s.stray(workersKey)
		// They are known before the first group is worked on. Nobody knows what
		// they were made with, so they are replaced.
		s.lead()
		s.wantCalls("create default/workers")
		s.want("draining " + id + " config-drift")
	})
}

func TestWhatWasDoneIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Shard.GarbageCollection.Interval = 2 * time.Minute
		s := start(t, c)
		wantShown := func(key instance.GroupKey, ids ...string) {
			t.Helper()
			s.mu.Lock()
			defer s.mu.Unlock()
			if got := s.shown[key]; !slices.Equal(got, ids) {
				t.Errorf("shows %q, want %q", got, ids)
			}
		}
		id := s.run(workersKey, 1)[0]
		wantShown(workersKey, "vm-"+id)
		s.scale(hastyKey, 1)
		wantShown(hastyKey, "")
		s.scale(hastyKey, 0)
		s.settle()
		wantShown(hastyKey)
		// There is nothing to do about one that is adopted while two others drain:
		// it is the one that there was no room for.
		s.run(otherKey, 3)
		s.scale(otherKey, 1)
		s.scale(otherKey, 2)
		stray := s.stray(otherKey)
		s.cloud.takeCalls()
		s.takeEvents()
		s.pass(2 * time.Minute)
		s.wantCalls()
		s.want()
		s.mu.Lock()
		defer s.mu.Unlock()
		if got := s.shown[otherKey]; len(got) != 4 || !slices.Contains(got, "vm-"+stray) {
			t.Errorf("shows %q, want vm-%s too", got, stray)
		}
	})
}

func TestInstancesOfAGroupThatIsNoMoreAreDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.end()
		id := s.stray(otherKey)
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
		gone := s.run(hastyKey, 1)[0]
		s.scale(hastyKey, 0)
		s.settle()
		s.cloud.takeCalls()
		s.takeEvents()

		// One that had gone comes back, and one appears that nobody made.
		s.cloud.put(instance.VM{ID: gone, Group: hastyKey, State: instance.Running})
		stray := s.stray(otherKey)
		s.pass(2 * time.Minute)
		if calls := s.cloud.takeCalls(); len(calls) != 1 || calls[0].id != gone {
			t.Errorf("called %v, want the end of %s", calls, gone)
		}
		s.want("draining " + stray + " scale-down")

		// It is remembered for an hour that it was there.
		s.settle()
		s.pass(50 * time.Minute)
		if _, found := s.instances.Get(gone); !found {
			t.Error("is forgotten too early")
		}
		s.pass(20 * time.Minute)
		if _, found := s.instances.Get(gone); found {
			t.Error("is remembered for ever")
		}
	})
}

func TestCollectionCanBeSwitchedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		id := s.stray(otherKey)
		s.pass(time.Hour)
		s.want()
		c := newConfig()
		c.Shard.GarbageCollection.Interval = time.Minute
		if err := s.groups.Reconfigure(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		s.pass(3 * time.Minute)
		s.want("draining " + id + " scale-down")
	})
}

func TestAnInstanceThatCannotBeAdoptedDoesNotStopTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.scale(workersKey, 1)
		s.end()
		s.cloud.put(instance.VM{ID: "no id", Group: otherKey, State: instance.Running})
		s.lead()
		s.wantCalls("create default/workers")
		s.scale(workersKey, 2)
		s.wantCalls()
		s.pass(time.Minute)
		s.wantCalls("create default/workers")
	})
}

func TestRecordsOfTheDeletedAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.run(hastyKey, 2)
		infos, err := s.storage.List(t.Context(), storage.InstancePrefix("a"))
		if err != nil || len(infos) != 2 {
			t.Fatalf("%v, %v", infos, err)
		}
		s.scale(hastyKey, 0)
		s.settle()
		if infos, err = s.storage.List(t.Context(), storage.InstancePrefix("a")); err != nil || len(infos) != 0 {
			t.Errorf("%v, %v", infos, err)
		}
		if events := s.takeEvents(); len(slices.DeleteFunc(events, func(e string) bool { return e[:7] != "deleted" })) != 2 {
			t.Errorf("told of %q, want two that are deleted", events)
		}
	})
}
