// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestErrorsMakeNothingMissing: however long calls fail, nothing is missing until Find has
// not found it twice.
func TestErrorsMakeNothingMissing(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault func(*world)
		// finds is how many machines are confirmed.
		finds int
	}{
		{"three empty lists", func(w *world) { w.faults.EmptyLists(3) }, 15},
		{"lists fail", func(w *world) { w.faults.Fail(cloudtest.List, 1000) }, 0},
		{"lists are empty and finding fails", func(w *world) {
			w.faults.EmptyLists(1000)
			w.faults.Fail(cloudtest.Find, 1000)
		}, 63},
		{"all calls are throttled", func(w *world) { w.faults.Throttle(20 * time.Minute) }, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run(t, func(t *testing.T, w *world) {
				ids := w.runs(5)
				tc.fault(w)
				time.Sleep(20 * time.Minute)
				assert.Empty(t, w.Changes, "changes")
				for _, state := range w.States(workers) {
					assert.Equal(t, instance.Running, state)
				}
				assert.Len(t, w.States(workers), 5)
				if finds := w.faults.Count(cloudtest.Find); finds > tc.finds {
					t.Errorf("%d machines were confirmed, want at most %d", finds, tc.finds)
				}
				// Afterwards, a machine that is really missing is.
				w.faults.EmptyLists(0)
				w.faults.Fail(cloudtest.List, 0)
				w.faults.Fail(cloudtest.Find, 0)
				w.cloud.Vanish(ids[2])
				w.Await(workers, map[string]instance.State{ids[2]: providertest.Deleted})
				assert.Len(t, w.List(workers), 4)
			})
		})
	}
}

// TestOneLookupIsNotEnough: an instance is missing when Find has not found it twice in
// succession.
func TestOneLookupIsNotEnough(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		id := w.runs(1)[0]
		w.cloud.Vanish(id)
		// Find is called once after the list that comes next, and again after another.
		for {
			_, known := w.Get(id)
			finds := w.faults.Count(cloudtest.Find)
			if finds > 0 {
				assert.True(t, known, "after one lookup it is missing")
				assert.Equal(t, 1, finds)
				break
			}
			time.Sleep(time.Second)
		}
		w.Await(workers, map[string]instance.State{id: providertest.Deleted})
		assert.Equal(t, 1, w.faults.Count(cloudtest.Find))
	})
}

// TestManyMissingMachinesAreConfirmedOneByOne: between some of them and the others there
// is another list, which may show them again.
func TestManyMissingMachinesAreConfirmedOneByOne(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		ids := w.runs(200)
		w.faults.EmptyLists(2)
		for lists := 0; lists < 2; lists += w.faults.Count(cloudtest.List) {
			time.Sleep(time.Second / 4)
		}
		time.Sleep(time.Minute)
		assert.Len(t, w.List(workers), 200)
		if finds := w.faults.Count(cloudtest.Find); finds == 0 || finds > 40 {
			t.Errorf("%d machines were confirmed, want at most 20 for each list", finds)
		}
		// All of them are really lost.
		w.cloud.Vanish(ids...)
		left := 200
		for left == 200 {
			time.Sleep(time.Second)
			left = len(w.List(workers))
		}
		if left < 180 {
			t.Errorf("%d of 200 machines are left after the first are confirmed to be missing", left)
		}
		want := map[string]instance.State{}
		for _, id := range ids {
			want[id] = providertest.Deleted
		}
		w.Await(workers, want)
	})
}

// TestAProviderMakesFewCalls: lists are rare while nothing happens.
func TestAProviderMakesFewCalls(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		ids := w.runs(500)
		time.Sleep(time.Hour)
		if calls := w.count(); calls.lists > 61 || calls.finds+calls.launches+calls.terminations != 0 {
			t.Errorf("in an hour there were %+v calls", calls)
		}
		for _, id := range ids {
			w.MustDelete(id)
		}
		w.Await(workers, map[string]instance.State{ids[0]: providertest.Deleted, ids[499]: providertest.Deleted})
		time.Sleep(time.Minute)
		assert.Empty(t, w.List(workers))
		if calls := w.count(); calls.terminations > 11 || calls.finds != 0 {
			t.Errorf("for the deletion there were %+v calls", calls)
		}
	})
}

// TestStatesReasonsAndAddressesAreReported: a change of any of them is a change.
func TestStatesReasonsAndAddressesAreReported(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		id := w.runs(1)[0]
		vm, _ := w.Get(id)
		assert.Len(t, vm.Addresses, 1)
		for _, tc := range []instance.VM{
			{State: instance.Impaired, Reason: "the system check fails"},
			{State: instance.Impaired, Reason: "the instance check fails"},
			{State: instance.Stopped, Reason: "stopped by a user"},
			{State: instance.Running},
		} {
			w.DrainChanges()
			w.cloud.Become(id, tc.State, tc.Reason)
			time.Sleep(2 * time.Minute)
			vm, _ := w.Get(id)
			assert.Equal(t, tc.State, vm.State)
			assert.Equal(t, tc.Reason, vm.Reason)
			assert.Len(t, w.Changes, 1)
		}
		assert.Empty(t, w.Failures)
	})
}

// TestRefreshListsSoon, once for all instances that something seems to be wrong with.
func TestRefreshListsSoon(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		ids := w.runs(3)
		for time.Sleep(time.Second); w.count().lists == 0; { // begins an interval
			time.Sleep(time.Second)
		}
		w.cloud.Become(ids[1], instance.Stopped, "stopped")
		time.Sleep(10 * time.Second)
		assert.Zero(t, w.count().lists)
		for range 5 {
			for _, id := range append(ids, "unknown") {
				w.Provider.(interface{ Refresh(string) }).Refresh(id)
			}
		}
		time.Sleep(w.cloud.Limits.PollInterval + time.Second)
		assert.Equal(t, 1, w.count().lists)
		assert.Equal(t, instance.Stopped, w.States(workers)[ids[1]])
	})
}
