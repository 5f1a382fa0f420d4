// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The provider ids of a group's new instances are stored eight at a time, each once. A write to an object
// storage takes 40 ms.
func TestRecordsAreWrittenEightAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 64
		s := start(t, newConfig())
		var mu sync.Mutex
		var writing, most, stored int
		s.storingID = func() {
			mu.Lock()
			writing, stored = writing+1, stored+1
			most = max(most, writing)
			mu.Unlock()
			time.Sleep(40 * time.Millisecond)
			mu.Lock()
			writing--
			mu.Unlock()
		}
		s.scale(workersKey, count)
		s.cloud.settle()
		s.pass(10 * time.Second)
		s.settle()
		assert.Len(t, s.cloud.ids(workersKey), count)
		for _, i := range s.instances.List(workersKey) {
			assert.NotEmpty(t, i.ProviderID)
		}
		assert.Equal(t, recordWriters, most, "writes at the same time")
		assert.Equal(t, count, stored, "writes")
	})
}

// The server crashes before its first call, its second, and so on, while the provider ids of nine
// instances are stored. Another server stores those that are missing: the instances are the same, and
// each has its id.
func TestCrashWhileRecordsAreWritten(t *testing.T) {
	for _, cached := range []bool{true, false} {
		for step := 1; ; step++ {
			crashed := false
			t.Run(fmt.Sprintf("cache kept %v, step %d", cached, step), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { crashed = growWithCrashAt(t, step, cached) })
			})
			if t.Failed() || !crashed {
				require.Greater(t, step, 18, "steps")
				break
			}
		}
	}
}

// growWithCrashAt returns false when there were fewer calls.
func growWithCrashAt(t *testing.T, step int, cached bool) (crashed bool) {
	s := start(t, newConfig())
	const count = 9
	crash := s.crashBeforeCall(step, cached)
	s.scale(workersKey, count)
	crash.proceed(workersKey)
	s.reconcile(workersKey)
	crash.proceed(workersKey)
	ids := s.cloud.ids(workersKey)
	assert.Len(t, ids, count, "instances of the cloud")
	for _, id := range ids {
		vm, _ := s.cloud.Get(id)
		i, found := s.instances.Get(id)
		assert.True(t, found)
		assert.NotEmpty(t, i.ProviderID)
		assert.Equal(t, vm.ProviderID, i.ProviderID)
	}
	// What is in memory is in the storage.
	s.stop()
	s.loseCache()
	s.lead()
	for _, id := range ids {
		i, _ := s.instances.Get(id)
		assert.NotEmpty(t, i.ProviderID, "in the storage")
	}
	return crash.happened
}
