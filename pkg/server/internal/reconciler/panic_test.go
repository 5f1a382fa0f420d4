// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// A panic for one group must not stop the server, and then the next leader, which
// reconciles the group too.
func TestPanicAffectsNoOtherGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Shard.CreateRateLimit = time.Second
		s := start(t, c)
		s.run(otherKey, 1)
		panics := 0
		s.cloud.rejectCalls(func(c call) error {
			if c.operation == "create" && c.group == workersKey {
				panics++
				panic("a fault of the provider")
			}
			return nil
		})
		s.scale(workersKey, 3)
		s.scale(otherKey, 3)
		for range 5 {
			s.pass(time.Second)
			s.cloud.settle()
		}
		assert.Len(t, s.cloud.ids(otherKey), 3, "instances of the other group")
		failures := s.takeFailures()
		assert.NotEmpty(t, failures, "reported to operators")
		for _, failed := range failures {
			assert.Equal(t, workersKey, failed.group)
		}

		s.pass(10 * time.Minute)
		assert.Greater(t, panics, 20, "attempts")
		assert.Less(t, panics, 60, "attempts with backoff")
		wantMetrics(t, s.metrics, []string{"nstance_server_reconcile_panics"}, "reconcile_panics_total{} "+fmt.Sprint(panics))

		s.cloud.rejectCalls(nil)
		s.pass(maxBackoff)
		assert.Len(t, s.cloud.ids(workersKey), 3, "the group is reconciled when the fault is mended")
	})
}

// One instance whose deletion panics does not delay the others of its group.
func TestPanicAffectsNoOtherInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		ids := s.run(workersKey, 3)
		s.cloud.rejectCalls(func(c call) error {
			if c.id == ids[0] {
				panic("a fault of the provider")
			}
			return nil
		})
		s.scale(workersKey, 0)
		for _, id := range ids {
			s.acknowledge(workersKey, id)
		}
		s.settle()
		assert.Equal(t, ids[:1], s.cloud.ids(workersKey))
	})
}

// Garbage collection reads all groups, at the start and regularly.
func TestPanicOfGarbageCollectionDoesNotStopTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Shard.GarbageCollection.Interval = time.Minute
		s := start(t, c)
		s.remove(otherKey)
		s.stop()
		var fails atomic.Bool
		attempts := 0
		s.unrecorded = func() {
			if fails.Load() {
				attempts++
				panic("a fault of the provider")
			}
		}
		s.lead()
		fails.Store(true)
		s.pass(5 * time.Minute)
		assert.Equal(t, 5, attempts, "attempts")
		fails.Store(false)
		stray := s.addStray(otherKey)
		s.pass(time.Minute)
		s.want("draining " + stray + " scale-down")
	})
}
