// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
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

// TestAMissingMachineIsTerminatedByItsID once, when its instance is given up.
func TestAMissingMachineIsTerminatedByItsID(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		id := w.runs(1)[0]
		w.cloud.Vanish(id)
		w.Await(workers, map[string]instance.State{id: providertest.Deleted})
		assert.Zero(t, w.count().terminations)
		w.MustDelete(id)
		assert.Equal(t, 1, w.count().terminations)
		w.MustDelete(id)
		time.Sleep(time.Hour)
		assert.Zero(t, w.count().terminations)
	})
}

// TestAFailedCallForAMissingMachine is reported.
func TestAFailedCallForAMissingMachine(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		id := w.runs(1)[0]
		w.cloud.Vanish(id)
		w.Await(workers, map[string]instance.State{id: providertest.Deleted})
		w.faults.Fail(cloudtest.Terminate, 1)
		require.ErrorContains(t, w.Delete(t.Context(), id), id)
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

// refusing is an API that refuses the calls of Launch after the first one, and lookups of
// some machines.
type refusing struct {
	cloud.API
	launches atomic.Int32
	refusals int32
	// mu guards the ids below.
	mu         sync.Mutex
	unreadable []string
	// hidden are the instances whose machines are not shown, as with the credentials of another
	// account.
	hidden []string
}

// set sets the ids of VMs that cannot be read, and of VMs that are hidden.
func (r *refusing) set(unreadable, hidden []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unreadable, r.hidden = unreadable, hidden
}

func (r *refusing) isUnreadable(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.unreadable, id)
}

func (r *refusing) isHidden(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.hidden, id)
}

func (r *refusing) List(ctx context.Context) ([]cloud.VM, error) {
	list, err := r.API.List(ctx)
	return slices.DeleteFunc(list, func(m cloud.VM) bool { return r.isHidden(m.ID) }), err
}

func (r *refusing) Launch(ctx context.Context, request cloud.Request) (cloud.VM, error) {
	if n := r.launches.Add(1); n > 1 && n <= 1+r.refusals {
		return cloud.VM{}, &cloud.Rejection{
			Scope: cloud.Scope{Group: request.Group}, RetryAfter: 5 * time.Minute, Err: errors.New("the role may not launch instances"),
		}
	}
	return r.API.Launch(ctx, request)
}

func (r *refusing) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	if r.isUnreadable(id) {
		return cloud.VM{}, false, errors.New("the machine cannot be read")
	}
	if r.isHidden(id) {
		return cloud.VM{}, false, nil
	}
	return r.API.Find(ctx, id)
}

// runRefusing runs a test with a provider whose calls r has.
func runRefusing(t *testing.T, r *refusing, test func(*testing.T, *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, cloud: cloudtest.NewCloud(), faults: cloudtest.NewFaults()}
		w.cloud.Limits.VisibilityDelay = visibilityDelay
		w.faults.DelayVisibility(visibilityDelay)
		w.Harness = providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
			r.API = w.faults.Wrap(w.cloud.API(shard))
			return cloud.New(r, cloud.Options{CallContext: callContext})
		})
		test(t, w)
	})
}

// TestARejectionAfterALostResponse proves only that the second call has created nothing: the
// cloud has refused it before it looked at the token. The instance keeps its first machine,
// however often the caller requests it again.
func TestARejectionAfterALostResponse(t *testing.T) {
	for _, refusals := range []int32{1, 5} {
		runRefusing(t, &refusing{refusals: refusals}, func(t *testing.T, w *world) {
			w.faults.LoseResponses(cloudtest.Launch, 1)
			s := spec("x")
			s.ID = w.MustCreate(s)
			for range 10 * 60 {
				time.Sleep(time.Second)
				if _, known := w.Get(s.ID); !known {
					_ = w.Create(t.Context(), s) // it may be rejected at present
				}
			}
			w.expectMade(s.ID)
			assert.Equal(t, map[string]instance.State{s.ID: instance.Running}, w.States(workers))
		})
	}
}

// TestARejectionAfterALostRequest is reported when it is certain that there is no machine.
func TestARejectionAfterALostRequest(t *testing.T) {
	r := &refusing{refusals: 100}
	runRefusing(t, r, func(t *testing.T, w *world) {
		w.faults.Fail(cloudtest.Launch, 1)
		id := w.MustCreate(spec("x"))
		time.Sleep(visibilityDelay - time.Second)
		_, known := w.Get(id)
		assert.True(t, known, "its machine may exist")
		w.Await(workers, map[string]instance.State{id: providertest.Deleted})
		assert.Empty(t, w.cloud.Made())
		assert.EqualValues(t, 2, r.launches.Load(), "calls: lost, and refused")
		var reasons []string
		for len(w.Failures) > 0 {
			reasons = append(reasons, (<-w.Failures).Err.Error())
		}
		assert.Contains(t, reasons[len(reasons)-1], "the role may not launch instances")
	})
}

// TestUnreadableMachinesDoNotHideOthers: lookups that fail, however many, delay the lookups
// of other VMs by one list.
func TestUnreadableMachinesDoNotHideOthers(t *testing.T) {
	r := &refusing{}
	runRefusing(t, r, func(t *testing.T, w *world) {
		ids := w.runs(8)
		slices.Sort(ids)
		r.set(ids[:7], nil)
		w.cloud.Vanish(ids...)
		began := time.Now()
		w.Await(workers, map[string]instance.State{ids[7]: providertest.Deleted})
		assert.LessOrEqual(t, time.Since(began), 5*time.Minute)
		assert.Len(t, w.States(workers), 7)
	})
}

// TestManyMachinesThatListsLeaveOut, and that are found by their ids, do not hide that one is
// missing: in the end each is looked up.
func TestManyMachinesThatListsLeaveOut(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		ids := w.runs(50)
		slices.Sort(ids)
		w.faults.EmptyLists(1000)
		time.Sleep(10 * time.Minute)
		assert.Len(t, w.States(workers), 50)
		w.cloud.Vanish(ids[49])
		w.Await(workers, map[string]instance.State{ids[49]: providertest.Deleted})
		assert.Len(t, w.States(workers), 49)
	})
}

// TestListsThatShowNoKnownMachine prove nothing for a while, even if no VM is found by its
// id. A list that shows another VM has the right credentials.
func TestListsThatShowNoKnownMachine(t *testing.T) {
	const emptyDelay = 15 * time.Minute
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, cloud: cloudtest.NewCloud(), faults: cloudtest.NewFaults()}
		w.cloud.Limits.EmptyDelay = emptyDelay
		w.start()
		ids := w.runs(2)
		w.faults.DelayVisibility(24 * time.Hour)
		time.Sleep(10 * time.Minute)
		assert.Len(t, w.States(workers), 2)
		assert.Zero(t, w.faults.Count(cloudtest.Find), "lookups")
		// After a list that fails the time begins anew.
		w.faults.Fail(cloudtest.List, 1)
		time.Sleep(14 * time.Minute)
		assert.Zero(t, w.faults.Count(cloudtest.Find), "lookups")
		w.faults.DelayVisibility(0)
		time.Sleep(time.Minute)
		assert.Len(t, w.States(workers), 2)

		w.cloud.Vanish(ids[0])
		time.Sleep(2 * time.Minute)
		assert.Equal(t, map[string]instance.State{ids[1]: instance.Running}, w.States(workers), "the other one is shown")

		w.cloud.Vanish(ids[1])
		time.Sleep(emptyDelay - time.Minute)
		assert.Len(t, w.States(workers), 1, "nothing is shown")
		w.Await(workers, map[string]instance.State{ids[1]: providertest.Deleted})

		// A terminated VM is not expected in a list.
		id := w.runs(1)[0]
		began := time.Now()
		w.MustDelete(id)
		w.Await(workers, map[string]instance.State{id: providertest.Deleted})
		assert.Less(t, time.Since(began), 5*time.Minute)
	})
}

// TestALaunchProvesNothingAboutOtherMachines: a list that shows only what was launched after
// the others were hidden is no proof that these are missing.
func TestALaunchProvesNothingAboutOtherMachines(t *testing.T) {
	r := &refusing{}
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, cloud: cloudtest.NewCloud(), faults: cloudtest.NewFaults()}
		w.cloud.Limits.EmptyDelay = 15 * time.Minute
		w.Harness = providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
			r.API = w.faults.Wrap(w.cloud.API(shard))
			return cloud.New(r, cloud.Options{CallContext: callContext})
		})
		ids := w.runs(2)
		r.set(nil, ids)
		time.Sleep(2 * time.Minute)
		w.runs(1)
		assert.Len(t, w.States(workers), 3, "10 minutes later")
		r.set(nil, nil)
		time.Sleep(time.Minute)
		assert.Len(t, w.States(workers), 3)
		assert.Empty(t, w.cloud.Terminated())
	})
}
