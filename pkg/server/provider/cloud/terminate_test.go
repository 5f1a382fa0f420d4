// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud_test

import (
	"context"
	"fmt"
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

// TestTerminationsAreBatched, with no machine in two calls.
func TestTerminationsAreBatched(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		ids := w.runs(120)
		want := map[string]instance.State{}
		for _, id := range ids {
			w.MustDelete(id)
			want[id] = providertest.Deleted
		}
		w.Await(workers, want)
		var sizes []int
		terminated := map[string]int{}
		for _, batch := range w.faults.Terminations() {
			sizes = append(sizes, len(batch))
			for _, id := range batch {
				terminated[id]++
			}
		}
		assert.Equal(t, []int{50, 50, 20}, sizes)
		assert.Len(t, terminated, 120)
		assert.ElementsMatch(t, ids, w.cloud.Terminated())
	})
}

// TestALostResponseOfATermination is confirmed by lists, or by another call.
func TestALostResponseOfATermination(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		id := w.runs(1)[0]
		w.faults.LoseResponses(cloudtest.Terminate, 2)
		w.MustDelete(id)
		w.Await(workers, map[string]instance.State{id: providertest.Deleted})
		assert.Equal(t, []string{id}, w.cloud.Terminated())
		assert.Empty(t, w.cloud.Existing())
	})
}

// TestThrottlingLosesNothing: a minute in which the cloud takes no call, while instances
// are created and deleted.
func TestThrottlingLosesNothing(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		old := w.runs(40)
		w.faults.Throttle(time.Minute)
		want := map[string]instance.State{}
		all := old
		for n, id := range old {
			w.MustDelete(id)
			want[id] = providertest.Deleted
			created := w.MustCreate(spec(fmt.Sprint("new ", n)))
			want[created] = instance.Running
			all = append(all, created)
		}
		w.Await(workers, want)
		w.expectMade(all...)
		assert.ElementsMatch(t, old, w.cloud.Terminated())
		assert.Empty(t, w.Failures, "failures")
		assert.Len(t, w.cloud.Existing(), 40)
	})
}

// TestADeletedMachineOfTwo: the cloud has two machines of one instance, which is reported.
// A deletion deletes both.
func TestADeletedMachineOfTwo(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		s := spec("nonce")
		s.ID = w.MustRun(s)
		w.cloud.Duplicate(s.ID)
		time.Sleep(2 * time.Minute)
		assert.NotEmpty(t, w.Failures)
		failure := <-w.Failures
		assert.Equal(t, s.ID, failure.ID)
		assert.ErrorContains(t, failure.Err, "there are 2 machines of one instance")
		assert.Len(t, w.cloud.Existing(), 2, "machines before the deletion")
		w.MustDelete(s.ID)
		w.Await(workers, map[string]instance.State{s.ID: providertest.Deleted})
		assert.Empty(t, w.cloud.Existing())
	})
}

// TestAHiddenMachineIsTerminatedWhenItIsListed: Terminate did not know it before.
func TestAHiddenMachineIsTerminatedWhenItIsListed(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		id := w.MustCreate(spec("nonce"))
		launched := time.Now()
		time.Sleep(50 * time.Second)
		w.MustDelete(id)
		w.Await(workers, map[string]instance.State{id: providertest.Deleted})
		if took := time.Since(launched); took > visibilityDelay+30*time.Second {
			t.Errorf("it was deleted %v after its launch", took)
		}
		assert.Empty(t, w.cloud.Existing())
	})
}

// TestATerminationThatDoesNotFindTheMachine proves nothing, nor does a list that leaves the
// machine out: Find decides. The call is repeated when a list shows the machine again.
func TestATerminationThatDoesNotFindTheMachine(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		id := w.runs(1)[0]
		const behind = 10*time.Minute + 15*time.Second
		w.faults.FallBehind(behind)
		began := time.Now()
		w.MustDelete(id)
		for range 61 {
			time.Sleep(10 * time.Second)
			require.Equal(t, map[string]instance.State{id: instance.Terminating}, w.States(workers))
		}
		if calls := w.count(); calls.terminations == 0 || calls.terminations > 12 || calls.lists == 0 {
			t.Errorf("meanwhile there were %+v calls", calls)
		}
		w.Await(workers, map[string]instance.State{id: providertest.Deleted})
		assert.Equal(t, []string{id}, w.cloud.Terminated())
		assert.Empty(t, w.cloud.Existing())
		if took := time.Since(began) - behind; took > 30*time.Second {
			t.Errorf("it was deleted %v after the machine was known again", took)
		}
		assert.Empty(t, w.Failures, "failures")
	})
}

// TestAMachineThatHasVanishedIsDeleted once two lookups have not found it.
func TestAMachineThatHasVanishedIsDeleted(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		id := w.runs(1)[0]
		w.cloud.Vanish(id)
		w.MustDelete(id)
		w.Await(workers, map[string]instance.State{id: providertest.Deleted})
		assert.Equal(t, 2, w.count().finds)
		assert.Empty(t, w.Failures, "failures")
	})
}

// heldList is a list that is empty, and takes until release is closed. It closes began.
type heldList struct{ began, release chan struct{} }

// slow is an API that may have a list that is held.
type slow struct {
	cloud.API
	next atomic.Pointer[heldList]
}

func (s *slow) List(ctx context.Context) ([]cloud.VM, error) {
	if held := s.next.Swap(nil); held != nil {
		close(held.began)
		<-held.release
		return nil, nil
	}
	return s.API.List(ctx)
}

// TestAListFromBeforeATermination does not confirm it: the machine may have been left out for
// another reason, and still exists.
func TestAListFromBeforeATermination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, cloud: cloudtest.NewCloud(), faults: cloudtest.NewFaults()}
		api := &slow{}
		w.Harness = providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
			api.API = w.faults.Wrap(w.cloud.API(shard))
			return cloud.New(api, cloud.Options{CallContext: callContext})
		})
		id := w.runs(1)[0]
		held := &heldList{began: make(chan struct{}), release: make(chan struct{})}
		api.next.Store(held)
		<-held.began
		w.MustDelete(id)
		time.Sleep(time.Second)
		require.Equal(t, []string{id}, w.cloud.Terminated())
		close(held.release)
		synctest.Wait()
		assert.Equal(t, map[string]instance.State{id: instance.Terminating}, w.States(workers))
		w.Await(workers, map[string]instance.State{id: providertest.Deleted})
		assert.Empty(t, w.cloud.Existing())
	})
}
