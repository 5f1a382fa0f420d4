// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// requestFor requests an instance of a group every 10 seconds for a time, as a caller that
// retries does.
func (w *world) requestFor(d time.Duration, s provider.Spec) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Second) {
		s.ID, s.CreatedAt = providertest.NewID(w.t), time.Now()
		_ = w.Create(w.t.Context(), s)
	}
}

// TestLackOfCapacityIsRemembered for its instance type: there is no other launch until the
// time is over, and then one.
func TestLackOfCapacityIsRemembered(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.cloud.SetFull("large", true)
		large := spec("nonce")
		large.Type.Name = "large"
		w.Leads.Store(false) // until all are requested
		for range 10 {
			large.ID = ""
			w.MustCreate(large)
		}
		w.Leads.Store(true)
		time.Sleep(time.Minute)
		// Several workers may have begun at the same time.
		if calls := w.count(); calls.launches > w.cloud.Limits.Launches {
			t.Errorf("there were %d launches", calls.launches)
		}
		assert.Len(t, w.Failures, 10, "each request is reported")
		assert.ErrorContains(t, (<-w.Failures).Err, "insufficient capacity for large")
		assert.Empty(t, w.List(workers))
		w.expectRejected(large, "insufficient capacity for large")
		w.MustRun(spec("nonce")) // of another type

		// The cloud's RetryAfter is 3 minutes.
		w.count()
		w.requestFor(10*time.Minute, large)
		if calls := w.count(); calls.launches < 3 || calls.launches > 4 {
			t.Errorf("there were %d launches in 10 minutes, want one every 3 minutes", calls.launches)
		}
		w.cloud.SetFull("large", false)
		w.requestFor(10*time.Minute, large)
		if calls := w.count(); calls.launches < 30 {
			t.Errorf("there were %d launches after there was capacity again", calls.launches)
		}
	})
}

// TestAProbeThatIsDeletedIsReplaced: another request may then find out whether there is
// capacity again.
func TestAProbeThatIsDeletedIsReplaced(t *testing.T) {
	run(t, func(_ *testing.T, w *world) {
		w.cloud.SetFull("medium", true)
		w.MustCreate(spec("nonce"))
		time.Sleep(4 * time.Minute)
		w.cloud.SetFull("medium", false)
		w.Leads.Store(false)
		probe := w.MustCreate(spec("nonce"))
		w.expectRejected(spec("nonce"), "insufficient capacity")
		w.MustDelete(probe)
		w.Await(workers, map[string]instance.State{probe: providertest.Deleted})
		w.Leads.Store(true)
		w.MustRun(spec("nonce"))
		w.MustRun(spec("nonce"))
	})
}

// TestAddressesInFlightCount: a subnet is never overcommitted.
func TestAddressesInFlightCount(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.cloud.Room["small"] = 11
		launched := 0
		for n := range 20 {
			s := spec(fmt.Sprint(n))
			s.Subnet, s.ID = "small", providertest.NewID(t)
			if room, err := w.Capacity(t.Context(), "small"); err != nil || room != max(0, 11-n) {
				t.Errorf("there is room for %d, %v after %d requests", room, err, n)
			}
			if w.Create(t.Context(), s) == nil {
				launched++
			}
		}
		assert.Equal(t, 11, launched)
		time.Sleep(time.Hour)
		assert.Len(t, w.cloud.Made(), 11)
		assert.Equal(t, 11, w.count().launches)
		assert.Empty(t, w.Failures)
	})
}

// TestASubnetThatRejectsHasNoRoom, so that the next subnet is tried.
func TestASubnetThatRejectsHasNoRoom(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		s := spec("nonce")
		s.Subnet = cloudtest.RejectedSubnet
		id := w.MustCreate(s)
		w.Await(workers, map[string]instance.State{id: providertest.Deleted})
		room, err := w.Capacity(t.Context(), s.Subnet)
		assert.NoError(t, err)
		assert.Zero(t, room)
		time.Sleep(2 * time.Minute)
		room, err = w.Capacity(t.Context(), s.Subnet)
		assert.NoError(t, err)
		assert.Positive(t, room)
	})
}

// TestMachinesThatFailBeforeTheyRun: the reason is reported, and the next launches of the
// same kind wait longer and longer, until one runs.
func TestMachinesThatFailBeforeTheyRun(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		fail := func(id string) {
			t.Helper()
			time.Sleep(time.Second)
			w.cloud.Become(id, instance.Failed, "the volume could not be attached")
			w.Await(workers, map[string]instance.State{id: instance.Failed})
			synctest.Wait()
			errs := w.ExpectFailures(1, workers, id)
			assert.ErrorContains(t, errs[0], "the volume could not be attached")
			vm, _ := w.Get(id)
			assert.Equal(t, "the volume could not be attached", vm.Reason)
			w.MustDelete(id)
		}
		var gaps []time.Duration
		last := time.Now()
		for range 7 {
			s := spec("nonce")
			for {
				s.ID, s.CreatedAt = providertest.NewID(t), time.Now()
				if w.Create(t.Context(), s) == nil {
					break
				}
				time.Sleep(time.Second)
			}
			gaps = append(gaps, time.Since(last).Truncate(time.Minute/2))
			fail(s.ID)
			last = time.Now()
		}
		assert.Equal(t, []time.Duration{0, 30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute}, gaps)
		time.Sleep(time.Hour)
		w.MustRun(spec("nonce"))
		w.MustRun(spec("nonce"))
		assert.Empty(t, w.Failures)
	})
}
