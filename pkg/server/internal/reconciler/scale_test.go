// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
)

// shrink reduces the size of a group, sets the instances to delete first, and
// waits until the reconciler is idle.
func (s *server) shrink(key instance.GroupKey, size int, first ...string) {
	s.t.Helper()
	change := sizeOf(size)
	change.RemoveFirst = first
	_, _, err := s.groups.Upsert(s.t.Context(), key, change)
	require.NoError(s.t, err)
	s.reconcile(key)
}

// wantLeft compares the instances of a group that are not terminating.
func (s *server) wantLeft(key instance.GroupKey, ids ...string) {
	s.t.Helper()
	assert.Equal(s.t, ids, s.cloud.ids(key), "instances of group %s", key)
}

func TestOnlyRemoveFirstInstancesAreDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		ids, others := s.run(workersKey, 4), s.run(otherKey, 2)
		single := s.onDemand(workersKey, func(*instance.Record) {})
		s.settle()
		s.cloud.takeCalls()

		// Ids of other groups, unknown ids and on-demand instances have no
		// effect.
		s.shrink(workersKey, 2, ids[3], others[1], "unknown", single, ids[1])
		s.want("draining "+ids[1]+" scale-down", "draining "+ids[3]+" scale-down")
		s.wantCalls()
		s.acknowledge(workersKey, ids[3])
		s.pass(5 * time.Minute)
		s.settle()
		s.wantCalls("delete default/workers", "delete default/workers")
		s.wantLeft(workersKey, ids[0], ids[2], single)
		s.wantLeft(otherKey, others...)
		// The ids have no further effect, even if they are sent again.
		s.shrink(workersKey, 2, ids[3], ids[0])
		s.pass(24 * time.Hour)
		s.wantCalls()
		// No deletion candidate is replaced when the group grows again.
		s.takeEvents()
		s.scale(workersKey, 3)
		s.settle()
		s.want()
		s.wantCalls("create default/workers")
		// Surplus and foreign instances leave no replacement that would have to
		// be deleted instead of the oldest.
		for _, id := range []string{single, others[1]} {
			require.NoError(s.t, s.instances.RequestDeletion(t.Context(), id))
		}
		s.reconcile(workersKey)
		s.reconcile(otherKey)
		s.settle()
		s.takeEvents()
		s.shrink(workersKey, 2, ids[3], single, others[1])
		s.want("draining " + ids[0] + " scale-down")
		s.acknowledge(workersKey, ids[0])
		s.settle()
		s.takeEvents()
		s.shrink(workersKey, 1, ids[0])
		s.want("draining " + ids[2] + " scale-down")
	})
}

// TestRemoveFirstAfterReplacement requests the removal of an instance that is
// already being replaced: its replacement is deleted, in any state,
// and older instances stay.
func TestRemoveFirstAfterReplacement(t *testing.T) {
	for _, settled := range []bool{false, true} {
		t.Run(fmt.Sprint("deleted ", settled), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t, newConfig())
				ids := s.run(workersKey, 4)
				require.NoError(s.t, s.instances.RequestDeletion(t.Context(), ids[1]))
				s.reconcile(workersKey)
				s.wantCalls("delete default/workers", "create default/workers")
				if settled {
					s.settle()
				}
				s.shrink(workersKey, 3, ids[1])
				s.finish()
				s.wantLeft(workersKey, ids[0], ids[2], ids[3])
			})
		})
	}
}

// TestCrashDuringRemoveFirst crashes the server before its first call to storage or cloud,
// its second, and so on. Another server continues, with the cache and without.
func TestCrashDuringRemoveFirst(t *testing.T) {
	for _, key := range []instance.GroupKey{workersKey, noDrainKey} {
		for _, cached := range []bool{true, false} {
			for step := 1; ; step++ {
				crashed := false
				t.Run(fmt.Sprintf("%s, cache kept %v, step %d", key.Group, cached, step), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { crashed = shrinkWithCrashAt(t, key, step, cached) })
				})
				if t.Failed() || !crashed {
					break
				}
			}
		}
	}
}

// shrinkWithCrashAt returns false when there were fewer calls.
func shrinkWithCrashAt(t *testing.T, key instance.GroupKey, step int, cached bool) (crashed bool) {
	s := start(t, newConfig())
	ids := s.run(key, 4)
	crash := s.crashBeforeCall(step, cached)
	s.shrink(key, 2, ids[3], ids[1])
	crash.proceed(key)
	s.wantLeft(key, ids[0], ids[2])
	for _, c := range s.cloud.takeCalls() {
		if c.operation == "create" || c.id != ids[1] && c.id != ids[3] {
			t.Errorf("called %v of %s", c, c.id)
		}
	}
	return crash.happened
}
