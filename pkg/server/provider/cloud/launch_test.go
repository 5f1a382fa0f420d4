// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud_test

import (
	"context"
	"errors"
	"fmt"
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

// TestACrashAfterALaunchMakesNoSecondMachine: the next process requests the instance with
// another nonce, which the cloud refuses for the same token.
func TestACrashAfterALaunchMakesNoSecondMachine(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		var ids []string
		for range 20 {
			s := spec("first nonce")
			w.faults.LoseResponses(cloudtest.Launch, 1)
			s.ID = w.MustCreate(s)
			ids = append(ids, s.ID)
			time.Sleep(time.Millisecond) // launched, and the response was lost
			w.restart()
			s.Userdata = []byte("second nonce")
			w.MustRun(s)
		}
		time.Sleep(time.Hour)
		w.expectMade(ids...)
		assert.Len(t, w.List(workers), len(ids))
	})
}

// TestAnUsedTokenIsSearchedFor: an existing VM is adopted although it is hidden at first.
// Another token is used only if no VM exists.
func TestAnUsedTokenIsSearchedFor(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		s := spec("first nonce")
		s.ID = w.MustCreate(s)
		time.Sleep(time.Millisecond)
		w.restart()
		s.Userdata = []byte("second nonce")
		w.MustRun(s)
		w.expectMade(s.ID)
		if launches := w.count().launches; launches != 2 {
			t.Errorf("there were %d launches, want that of each process", launches)
		}

		// Another machine of the token was deleted before anybody saw it.
		lost := spec("first nonce")
		lost.ID = w.MustCreate(lost)
		time.Sleep(time.Millisecond)
		w.cloud.Vanish(lost.ID)
		w.restart()
		lost.Userdata = []byte("second nonce")
		requested := time.Now()
		w.MustRun(lost)
		if took := time.Since(requested); took < visibilityDelay {
			t.Errorf("it was launched again after %v", took)
		}
		w.expectMade(s.ID, lost.ID, lost.ID)
	})
}

// TestARequestOfAnotherProcessIsSearchedFor: the former process may have used another
// token than the first, because a subnet rejected that one.
func TestARequestOfAnotherProcessIsSearchedFor(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.cloud.ForgetRejected = true
		s := spec("nonce")
		s.CreatedAt = time.Now().Add(time.Hour) // the clock of the former process is ahead
		s.Subnet = cloudtest.RejectedSubnet
		s.ID = w.MustCreate(s)
		w.Await(workers, map[string]instance.State{s.ID: providertest.Deleted})
		s.Subnet = "other"
		w.MustCreate(s)
		time.Sleep(time.Millisecond)
		w.expectMade(s.ID)
		w.restart()
		w.expect(s.ID)
		// The next process finds room in a third subnet.
		s.Subnet = "subnet"
		w.MustRun(s)
		time.Sleep(time.Hour)
		w.expectMade(s.ID)

		// A VM that was never launched is launched when it cannot be hidden any more.
		fresh := spec("nonce")
		fresh.ID = providertest.NewID(t)
		time.Sleep(time.Millisecond)
		w.restart()
		w.expect(fresh.ID)
		restarted := time.Now()
		w.MustRun(fresh)
		if took := time.Since(restarted); took < visibilityDelay {
			t.Errorf("it was launched after %v", took)
		}
	})
}

// TestAHiddenMachineOfAnotherProcessIsDeleted: the instance stays known until its machine
// can be hidden no more.
func TestAHiddenMachineOfAnotherProcessIsDeleted(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		launched := w.MustCreate(spec("nonce"))
		time.Sleep(time.Millisecond)
		w.restart()
		never := providertest.NewID(t)
		w.expect(launched, never)
		w.MustDelete(launched)
		w.MustDelete(never)
		want := map[string]instance.State{launched: instance.Terminating, never: instance.Terminating}
		assert.Equal(t, want, w.States(workers))
		w.Await(workers, map[string]instance.State{launched: providertest.Deleted, never: providertest.Deleted})
		assert.Equal(t, []string{launched}, w.cloud.Terminated())
		assert.Empty(t, w.cloud.Existing(), "machines that exist")
		time.Sleep(time.Hour)
		assert.Empty(t, w.List(workers), "instances that have returned")
	})
}

// TestATokenOfADeletedMachineGivesAFailedInstance: the caller needs another id.
func TestATokenOfADeletedMachineGivesAFailedInstance(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		s := spec("nonce")
		s.ID = w.MustRun(s)
		w.cloud.Vanish(s.ID)
		w.Await(workers, map[string]instance.State{s.ID: providertest.Deleted})
		w.MustCreate(s)
		w.Await(workers, map[string]instance.State{s.ID: instance.Failed})
		vm, _ := w.Get(s.ID)
		assert.Equal(t, "the machine was deleted", vm.Reason)
		w.expectMade(s.ID)
	})
}

// TestTheAttemptOfALostResponseIsRepeated: the subnet stays the same until the outcome is
// known, whatever else is requested meanwhile.
func TestTheAttemptOfALostResponseIsRepeated(t *testing.T) {
	run(t, func(_ *testing.T, w *world) {
		s := spec("nonce")
		w.faults.LoseResponses(cloudtest.Launch, 3)
		s.ID = w.MustCreate(s)
		time.Sleep(time.Millisecond)
		s.Subnet, s.Userdata = "other", []byte("another nonce")
		w.MustRun(s)
		w.expectMade(s.ID)
		w.ExpectFailures(3, workers, s.ID)
	})
}

// TestAPendingInstanceIsDeletedAfterALostResponse: the machine may exist, and appears late.
func TestAPendingInstanceIsDeletedAfterALostResponse(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		s := spec("nonce")
		w.faults.LoseResponses(cloudtest.Launch, 1)
		s.ID = w.MustCreate(s)
		time.Sleep(time.Millisecond)
		w.MustDelete(s.ID)
		w.Await(workers, map[string]instance.State{s.ID: providertest.Deleted})
		assert.Empty(t, w.cloud.Existing(), "machines that exist")
		w.expectMade(s.ID)
	})
}

// undoing is an API that lists a machine whose launch is rejected in the end.
type undoing struct{ cloud.API }

func (u undoing) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	m, err := u.API.Launch(ctx, r)
	time.Sleep(time.Minute)
	u.Terminate(ctx, []cloud.VM{m})
	return cloud.VM{}, &cloud.Rejection{Scope: cloud.Scope{Subnet: r.Subnet}, Err: errors.Join(err, errors.New("it did not start"))}
}

// TestALaunchInProgressIsNoMachine: only its result decides whether there is one.
func TestALaunchInProgressIsNoMachine(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		id := w.MustRun(spec("nonce"))
		w.Stop()
		w.DrainChanges()
		h := providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
			return cloud.New(undoing{w.cloud.API(shard)}, cloud.Options{CallContext: callContext})
		})
		rejected := h.MustCreate(spec("nonce"))
		h.MustDelete(id) // makes the lists frequent
		time.Sleep(30 * time.Second)
		vm, _ := h.Get(rejected)
		assert.Equal(t, instance.VM{ID: rejected, Group: workers, State: instance.Pending}, vm)
		h.Await(workers, map[string]instance.State{rejected: providertest.Deleted})
		errs := h.ExpectFailures(1, workers, rejected)
		assert.ErrorContains(t, errs[0], "it did not start")
	})
}

// starting is an API that lists a machine as failed until its launch ends. Lists are slow.
type starting struct {
	cloud.API
	launching *atomic.Bool
}

func (s starting) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	s.launching.Store(true)
	defer s.launching.Store(false)
	m, err := s.API.Launch(ctx, r)
	time.Sleep(10 * time.Second)
	m.State = instance.Running
	return m, err
}

func (s starting) List(ctx context.Context) ([]cloud.VM, error) {
	list, err := s.API.List(ctx)
	for i := range list {
		if s.launching.Load() {
			list[i].State, list[i].Reason = instance.Failed, "it was never started"
		}
	}
	time.Sleep(20 * time.Second)
	return list, err
}

// TestAListThatBeganDuringALaunchSaysNothing about its machine, although the list ends later.
func TestAListThatBeganDuringALaunchSaysNothing(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.Stop()
		w.cloud.BootTime = 0
		h := providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
			return cloud.New(starting{w.cloud.API(shard), new(atomic.Bool)}, cloud.Options{CallContext: callContext})
		})
		for range 10 {
			id := h.MustCreate(spec("nonce"))
			for range 60 {
				time.Sleep(time.Second)
				if vm, _ := h.Get(id); vm.State == instance.Failed {
					t.Fatalf("instance %s is reported as failed: %s", id, vm.Reason)
				}
			}
			h.MustDelete(id) // makes the lists frequent
		}
		assert.Empty(t, h.Failures, "failures")
	})
}

// TestARequestThatMayHaveAMachineIsNotGivenUp although others like it are rejected.
func TestARequestThatMayHaveAMachineIsNotGivenUp(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.faults.LoseResponses(cloudtest.Launch, 1)
		id := w.MustCreate(spec("nonce"))
		time.Sleep(time.Millisecond)
		w.cloud.SetFull("medium", true)
		rejected := w.MustCreate(spec("nonce"))
		w.Await(workers, map[string]instance.State{rejected: providertest.Deleted})
		w.Await(workers, map[string]instance.State{id: instance.Running})
		w.expectMade(id)
		assert.Len(t, w.Failures, 2, "the lost response and the rejection")
	})
}

// slowAPI has launches that take several calls.
type slowAPI struct {
	cloud.API
	// left is how many calls are still in progress, and calls how many there were.
	left, calls atomic.Int32
	// userdata is the userdata of the last call.
	userdata atomic.Value
}

func (a *slowAPI) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	a.calls.Add(1)
	a.userdata.Store(string(r.Userdata))
	if a.left.Add(-1) >= 0 {
		return cloud.VM{}, fmt.Errorf("the machine is copied: %w", cloud.ErrInProgress)
	}
	return a.API.Launch(ctx, r)
}

// runSlow runs a test with launches that take a number of calls.
func runSlow(t *testing.T, calls int32, test func(*testing.T, *providertest.Harness, *cloudtest.Cloud, *slowAPI)) {
	synctest.Test(t, func(t *testing.T) {
		fake := cloudtest.NewCloud()
		api := &slowAPI{API: fake.API(shard)}
		api.left.Store(calls - 1)
		h := providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
			return cloud.New(api, cloud.Options{CallContext: callContext})
		})
		test(t, h, fake, api)
	})
}

// TestALaunchThatTakesSeveralCalls is continued, and is no failure.
func TestALaunchThatTakesSeveralCalls(t *testing.T) {
	runSlow(t, 10, func(t *testing.T, h *providertest.Harness, fake *cloudtest.Cloud, api *slowAPI) {
		began := time.Now()
		id := h.MustRun(spec("nonce"))
		assert.EqualValues(t, 10, api.calls.Load(), "calls")
		assert.Empty(t, h.Failures, "failures")
		assert.Equal(t, []string{id}, fake.Made())
		if took := time.Since(began); took > 10*fake.Limits.PollInterval+time.Minute {
			t.Errorf("it took %v: the calls are delayed as after failures", took)
		}
	})
}

// TestALaunchInProgressIsDeleted: its machine may exist, so it is searched for.
func TestALaunchInProgressIsDeleted(t *testing.T) {
	runSlow(t, 1000, func(t *testing.T, h *providertest.Harness, fake *cloudtest.Cloud, api *slowAPI) {
		id := h.MustCreate(spec("nonce"))
		time.Sleep(time.Minute)
		h.MustDelete(id)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
		calls := api.calls.Load()
		time.Sleep(time.Hour)
		assert.Equal(t, calls, api.calls.Load(), "calls after the deletion")
		assert.Empty(t, fake.Made())
	})
}

// TestALaunchThatTakesLong is requested again, with a nonce that is valid when the machine
// starts. A process that was not there when the instance was recorded does the same.
func TestALaunchThatTakesLong(t *testing.T) {
	runSlow(t, 400, func(t *testing.T, h *providertest.Harness, fake *cloudtest.Cloud, api *slowAPI) {
		began := time.Now()
		s := spec("")
		s.ID, s.CreatedAt = providertest.NewID(t), began.Add(-time.Minute)
		requested, requests := began, 0
		for vm, known := h.Get(s.ID); vm.State != instance.Running; vm, known = h.Get(s.ID) {
			if !known {
				requested, requests = time.Now(), requests+1
				s.Userdata = []byte(fmt.Sprint("nonce ", requests))
				h.MustCreate(s)
			}
			<-h.Changes
		}
		assert.Equal(t, fmt.Sprint("nonce ", requests), api.userdata.Load())
		assert.Greater(t, requests, 5, "requests in %v", time.Since(began))
		if age := time.Since(requested); age > 3*time.Minute {
			t.Errorf("the userdata is %v old", age)
		}
		assert.EqualValues(t, 400, api.calls.Load(), "calls")
		assert.Equal(t, []string{s.ID}, fake.Made())
		assert.Empty(t, h.Failures, "failures")
	})
}

// TestALaunchThatIsRenewedIsDeleted although the provider has no request for it: its machine
// may exist.
func TestALaunchThatIsRenewedIsDeleted(t *testing.T) {
	runSlow(t, 400, func(t *testing.T, h *providertest.Harness, fake *cloudtest.Cloud, _ *slowAPI) {
		id := h.MustCreate(spec("nonce"))
		for _, known := h.Get(id); known; _, known = h.Get(id) {
			<-h.Changes
		}
		assert.Empty(t, fake.Made())
		renewer := h.Provider.(provider.Renewer)
		assert.True(t, renewer.Renews(id), "the instance counts as missing")
		h.MustDelete(id)
		assert.False(t, renewer.Renews(id))
		vm, known := h.Get(id)
		assert.True(t, known, "the deletion is not in progress: %v", vm)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
	})
}

// renewAfter is how old the userdata of a launch may be.
const renewAfter = time.Minute

// agingAPI records how old the userdata of each VM is when it is launched: its text is the time at
// which it was rendered.
type agingAPI struct {
	cloud.API
	throttledFrom, throttledUntil time.Time

	mu        sync.Mutex
	ages      []time.Duration
	throttled int
}

func (a *agingAPI) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	if now := time.Now(); !now.Before(a.throttledFrom) && now.Before(a.throttledUntil) {
		a.mu.Lock()
		a.throttled++
		a.mu.Unlock()
		return cloud.VM{}, cloud.ErrThrottled
	}
	time.Sleep(time.Second)
	vm, err := a.API.Launch(ctx, r)
	if rendered, parseErr := time.Parse(time.RFC3339Nano, string(r.Userdata)); err == nil && parseErr == nil {
		a.mu.Lock()
		a.ages = append(a.ages, time.Since(rendered))
		a.mu.Unlock()
	}
	return vm, err
}

// TestALaunchThatHasWaitedGetsAnotherNonce: however long a launch waits for its turn, or for a
// cloud that throttles, its machine has half of the life of a nonce left to register.
func TestALaunchThatHasWaitedGetsAnotherNonce(t *testing.T) {
	for name, test := range map[string]struct {
		count            int
		after, throttled time.Duration
	}{
		"a growth by 800":           {800, 0, 0},
		"ten minutes of throttling": {3, 0, 10 * time.Minute},
		"ten minutes of throttling in the middle of a growth by 800": {800, 3 * time.Minute, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				made := cloudtest.NewCloud()
				// The limits of provider aws.
				made.Limits.Writes, made.Limits.Launches = cloud.Budget{PerSecond: 2, Burst: 5}, 4
				api := &agingAPI{API: made.API(shard), throttledFrom: time.Now().Add(test.after)}
				api.throttledUntil = api.throttledFrom.Add(test.throttled)
				h := providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
					return cloud.New(api, cloud.Options{CallContext: callContext})
				})
				var wanted []provider.Spec
				for range test.count {
					s := spec("")
					s.ID = providertest.NewID(t)
					wanted = append(wanted, s)
				}
				renewer, requested := h.Provider.(provider.Renewer), map[string]bool{}
				begin := time.Now()
				for len(made.Made()) < test.count && time.Since(begin) < time.Hour {
					// Like the reconciler, which creates what the provider does not know.
					for _, s := range wanted {
						if _, known := h.Get(s.ID); !known {
							assert.Equal(t, requested[s.ID], renewer.Renews(s.ID), "the instance has to be created again, and is not missing")
							s.Userdata = []byte(time.Now().Format(time.RFC3339Nano))
							require.NoError(t, h.Create(t.Context(), s))
							requested[s.ID] = true
						}
					}
					h.Discard()
					time.Sleep(time.Second)
				}
				synctest.Wait()
				api.mu.Lock()
				defer api.mu.Unlock()
				assert.Len(t, api.ages, test.count)
				assert.Equal(t, test.throttled > 0, api.throttled > 0)
				assert.Empty(t, made.Terminated())
				assert.LessOrEqual(t, slices.Max(api.ages), renewAfter+time.Second)
				// The budget allows no earlier end.
				floor := test.throttled + time.Duration(test.count/2)*time.Second
				assert.Less(t, time.Since(begin), floor+floor/4+time.Minute)
			})
		})
	}
}

// TestALaunchOfUnknownResultThatHasWaitedIsNotForgotten: its VM exists, and the next request with
// another nonce finds it; or a deletion does.
func TestALaunchOfUnknownResultThatHasWaitedIsNotForgotten(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		run(t, func(t *testing.T, w *world) {
			s := spec("first nonce")
			w.faults.LoseResponses(cloudtest.Launch, 1)
			s.ID = w.MustCreate(s)
			time.Sleep(time.Millisecond) // launched, and the response was lost
			w.faults.Fail(cloudtest.Launch, 1000)
			w.Await(workers, map[string]instance.State{s.ID: providertest.Deleted})
			w.faults.Fail(cloudtest.Launch, 0)
			if deleted {
				w.MustDelete(s.ID)
				w.Await(workers, map[string]instance.State{s.ID: providertest.Deleted})
				assert.Equal(t, []string{s.ID}, w.cloud.Terminated())
				return
			}
			s.Userdata = []byte("second nonce")
			w.MustRun(s)
			w.expectMade(s.ID)
		})
	}
}
