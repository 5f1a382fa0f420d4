// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
)

// No record says which instance replaces which. TestReplacementSurvivesACrash replaces an
// impaired instance while the server crashes before its first call to storage or cloud, its
// second, and so on. The next server has the cache or not, and the storage with the record
// of the replacement or, restored, without. There is one replacement in all cases, and the
// impaired instance alone is drained, and deleted after that.
func TestReplacementSurvivesACrash(t *testing.T) {
	for _, cached := range []bool{true, false} {
		for _, restored := range []bool{true, false} {
			for step := 1; ; step++ {
				crashed := false
				t.Run(fmt.Sprintf("cache kept %v, storage restored %v, step %d", cached, restored, step), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { crashed = replaceWithCrashAt(t, step, cached, restored) })
				})
				if t.Failed() || !crashed {
					require.Greater(t, step, 5, "steps")
					break
				}
			}
		}
	}
}

// replaceWithCrashAt returns false when there were fewer calls.
func replaceWithCrashAt(t *testing.T, step int, cached, restored bool) (crashed bool) {
	s := start(t, newConfig())
	const size = 3
	ids := s.run(workersKey, size)
	old := ids[0]
	drained := false
	s.cloud.rejectCalls(func(c call) error {
		if c.operation == "delete" {
			assert.Equal(t, old, c.id, "deleted")
			assert.True(t, drained, "deleted before it was drained")
		}
		return nil
	})
	crash := s.crashBeforeCall(step, cached)
	s.cloud.become(old, instance.Impaired)
	synctest.Wait()
	for range 12 {
		s.cloud.settle()
		synctest.Wait()
		if crash.happened && !crash.takenOver {
			crash.takenOver = true
			s.stop()
			if !cached {
				s.loseCache()
			}
			if restored {
				s.loseRecordsExcept(ids)
			}
			s.lead()
			s.pass(confirmTimeout)
			// The operator sends its size when it connects.
			s.scale(workersKey, size)
		}
		for _, i := range s.instances.Draining("default") {
			if !i.Drain.Acknowledged {
				assert.Equal(t, old, i.ID, "drained")
				drained = true
				s.acknowledge(workersKey, i.ID)
			}
		}
	}
	assert.True(t, drained, "the impaired instance is drained")
	left := s.cloud.ids(workersKey)
	assert.Len(t, left, size)
	assert.Subset(t, left, ids[1:])
	assert.Len(t, slices.Collect(maps.Keys(s.cloud.groups)), size+1, "instances that ever existed")
	starts := 0
	for _, e := range s.takeEvents() {
		if e == "draining "+old+" unhealthy" {
			starts++
		}
	}
	if cached || !crash.happened {
		assert.LessOrEqual(t, starts, 1, "drains of the impaired instance")
	}
	infos, err := s.storage.List(t.Context(), storage.InstancePrefix("a"))
	require.NoError(t, err)
	assert.Len(t, infos, size, "records")
	return crash.happened
}

// loseRecordsExcept removes the records of other instances from the storage.
func (s *server) loseRecordsExcept(ids []string) {
	s.t.Helper()
	infos, err := s.storage.List(s.t.Context(), storage.InstancePrefix("a"))
	require.NoError(s.t, err)
	kept := 0
	for _, info := range infos {
		object, err := s.storage.Get(s.t.Context(), info.Key)
		require.NoError(s.t, err)
		if slices.ContainsFunc(ids, func(id string) bool { return bytes.Contains(object.Data, []byte(id)) }) {
			kept++
			continue
		}
		require.NoError(s.t, s.storage.Delete(s.t.Context(), info.Key))
	}
	require.NotZero(s.t, kept, "records of %v", ids)
}
