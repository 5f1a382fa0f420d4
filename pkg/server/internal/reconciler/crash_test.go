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

// TestCrashBetweenAnyTwoSteps scales a group, rotates and loses instances while the server
// crashes before its first call to storage or cloud, its second, and so on. Another server
// continues, with the cache and without. The cloud never has more than one surplus instance,
// no needed instance is deleted, and in the end exactly the desired instances exist.
func TestCrashBetweenAnyTwoSteps(t *testing.T) {
	for _, cached := range []bool{true, false} {
		for step := 1; ; step++ {
			crashed := false
			t.Run(fmt.Sprintf("cache kept %v, step %d", cached, step), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					crashed = runWithCrashAt(t, step, cached)
				})
			})
			if t.Failed() || !crashed {
				break
			}
		}
	}
}

// runWithCrashAt runs the scenario with a server that crashes before its call
// number step. It returns false when there were fewer calls.
func runWithCrashAt(t *testing.T, step int, cached bool) (crashed bool) {
	s := start(t, newConfig())
	const size = 3
	ids := s.run(workersKey, size)
	s.cloud.Mu.Lock()
	s.cloud.watch = func() {
		there := 0
		for _, vm := range s.cloud.VMs {
			if vm.State != instance.Terminating {
				there++
			}
		}
		if there > size+1 {
			t.Errorf("the cloud has %d instances, want %d at most", there, size+1)
		}
	}
	s.cloud.reject = func(c call) error {
		if c.operation != "delete" || s.cloud.VMs[c.id].State != instance.Running {
			return nil
		}
		others := 0
		for _, vm := range s.cloud.VMs {
			if vm.ID != c.id && (vm.State == instance.Running || vm.State == instance.Pending) {
				others++
			}
		}
		if others < size {
			t.Errorf("deleting %s leaves %d", c.id, others)
		}
		return nil
	}
	s.cloud.Mu.Unlock()
	crash := s.crashBeforeCall(step, cached)

	s.cloud.vanish(ids[0])
	synctest.Wait()
	crash.proceed(workersKey)
	s.cloud.become(s.cloud.ids(workersKey)[0], instance.Impaired)
	synctest.Wait()
	crash.proceed(workersKey)
	s.reconfigure(drift)
	crash.proceed(workersKey)

	s.cloud.takeCalls()
	s.reconcile(workersKey)
	s.wantCalls()
	left := s.cloud.ids(workersKey)
	if len(left) != size || len(s.cloud.List(workersKey)) != size {
		t.Errorf("the cloud has %v", s.cloud.List(workersKey))
	}
	for _, i := range s.instances.List(workersKey) {
		group, _ := s.groups.Get(workersKey)
		if i.State != instance.Running || i.BeingDeleted() || i.InfraConfigHash != group.InfraConfigHash || i.ProviderID == "" {
			t.Errorf("got %+v", i)
		}
	}
	infos, err := s.storage.List(t.Context(), storage.InstancePrefix("a"))
	if err != nil || len(infos) != size {
		t.Errorf("there are records %v, %v", infos, err)
	}
	// All deletions were announced, except while no server was running.
	deleted := map[string]bool{}
	s.mu.Lock()
	for _, e := range s.events {
		deleted[e.id] = deleted[e.id] || e.status == "deleted"
	}
	s.mu.Unlock()
	silent := 0
	for _, id := range slices.Sorted(maps.Keys(s.cloud.groups)) {
		if !slices.Contains(left, id) && !deleted[id] {
			silent++
		}
	}
	if silent > 1 || silent > 0 && !crash.happened {
		t.Errorf("%d instances were deleted without an event", silent)
	}
	return crash.happened
}

// crash is a crash of a server before one of its calls.
type crash struct {
	s *server
	// cached is true when the cache survives.
	cached              bool
	happened, takenOver bool
}

// crashBeforeCall makes the server crash before its call number step.
func (s *server) crashBeforeCall(step int, cached bool) *crash {
	c := &crash{s: s, cached: cached}
	s.beforeCall = func() {
		if step--; step == 0 {
			c.happened = true
			s.cancel()
		}
	}
	return c
}

// proceed lets the cloud and the operator finish their work, and starts another server
// after the crash.
func (c *crash) proceed(key instance.GroupKey) {
	for range 12 {
		c.s.cloud.settle()
		synctest.Wait()
		if c.happened && !c.takenOver {
			c.takenOver = true
			c.s.stop()
			if !c.cached {
				c.s.loseCache()
			}
			c.s.lead()
			// An operator might send another size for instances that are missing.
			c.s.pass(confirmTimeout)
		}
		for _, i := range c.s.instances.Draining("default") {
			c.s.acknowledge(key, i.ID)
		}
	}
}

// TestReplacementSurvivesACrash replaces an impaired instance while the server crashes before
// its first call to storage or cloud, its second, and so on. No record says which instance
// replaces which. The next server has the cache or not, and the storage with the record of
// the replacement or, restored, without. There is one replacement in all cases, and only the
// impaired instance is drained, and deleted after that.
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
