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

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// refusing is an API that refuses the calls of Launch after the first one, and lookups of some
// machines.
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

// set sets the ids of machines that cannot be read, and of those that are hidden.
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

// TestUnreadableMachinesDoNotHideOthers: lookups that fail, however many, delay those of other
// machines by one list.
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

// TestListsThatShowNoKnownMachine prove nothing for a while, also if no machine is found by
// its id. One that shows another machine is of the right account.
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

		// What was terminated is not expected in a list.
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
