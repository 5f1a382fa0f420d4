// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestAnInstanceThatEndedWhileNoServerLed: the next leader reports that the instance has
// stopped, and why. It never counts as missing, because EC2 shows that it is terminated.
func TestAnInstanceThatEndedWhileNoServerLed(t *testing.T) {
	for code, message := range map[string]string{
		"Client.UserInitiatedShutdown":   "Client.UserInitiatedShutdown: User initiated shutdown",
		"Server.SpotInstanceTermination": "Server.SpotInstanceTermination: Spot instance termination",
		"":                               "",
	} {
		inBubble(t, newRegion(), func(t *testing.T, w *world) {
			h := w.startProvider()
			id := h.MustRun(spec())
			time.Sleep(10 * time.Minute)
			record, _ := h.Get(id)
			h.Stop()
			w.End(id, code, message)
			time.Sleep(5 * time.Minute)
			h = w.restart(h, record)
			h.Await(workers, map[string]instance.State{id: instance.Stopped})
			vm, known := h.Get(id)
			assert.True(t, known)
			assert.Contains(t, vm.Reason, message)
			assert.Contains(t, vm.Reason, "the service has terminated the instance")
			time.Sleep(10 * time.Minute)
			assert.Equal(t, map[string]instance.State{id: instance.Stopped}, h.States(workers), "it stays known until it is deleted")

			h.MustDelete(id)
			assert.Empty(t, h.List(workers), "nothing is left to terminate")
			time.Sleep(10 * time.Minute)
			assert.Empty(t, h.List(workers), "although EC2 shows it for an hour")
			assert.Empty(t, w.Terminated(), "calls to terminate it")
			assert.Empty(t, h.Failures)
		})
	}
}

// TestAnEndedInstanceWhoseTagsAreLost is found by its provider id: EC2 removes the tags of an
// instance some time after it was terminated.
func TestAnEndedInstanceWhoseTagsAreLost(t *testing.T) {
	inBubble(t, newRegion(), func(_ *testing.T, w *world) {
		h := w.startProvider()
		id := h.MustRun(spec())
		record, _ := h.Get(id)
		h.Stop()
		w.Terminate(id)
		w.SetTag(id, tagManaged, "")
		h = w.restart(h, record)
		h.Await(workers, map[string]instance.State{id: instance.Stopped})
	})
}

// TestAnInstanceThatSomebodyTerminates while the server leads is terminating first. Its group
// already has its replacement then, so it is dropped as soon as EC2 shows it as terminated.
func TestAnInstanceThatSomebodyTerminates(t *testing.T) {
	s := newRegion()
	s.StopTime = 5 * time.Minute
	inBubble(t, s, func(t *testing.T, w *world) {
		h := w.startProvider()
		id := h.MustRun(spec())
		vm, _ := h.Get(id)
		require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{{ID: id, ProviderID: vm.ProviderID}}))
		h.Await(workers, map[string]instance.State{id: instance.Terminating})
		vm, _ = h.Get(id)
		assert.Equal(t, "the service terminates the instance: Client.UserInitiatedShutdown: User initiated shutdown", vm.Reason)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
	})
}

// TestEveryFailedLaunchWaits: whatever code EC2 gives when it terminates an instance that has
// never run, its reason is reported, and the next launches wait longer and longer.
func TestEveryFailedLaunchWaits(t *testing.T) {
	for _, code := range []string{"Client.InvalidKMSKey.InvalidState", "Server.InternalError", "Client.AnUnknownCode"} {
		inBubble(t, newRegion(), func(t *testing.T, w *world) {
			h := w.startProvider()
			w.FailLaunches(1000, code, code+": the volume cannot be attached")
			r := &wanted{Harness: h, world: w, spec: spec()}
			r.during(30 * time.Minute)
			// 30 s, 1, 2, 4 and 8 min, and then every 10 min.
			made := len(w.Made())
			if made < 5 || made > 7 {
				t.Errorf("%s: %d launches in half an hour", code, made)
			}
			require.Len(t, h.Failures, made, code)
			require.ErrorContains(t, (<-h.Failures).Err, "the service has terminated the instance: "+code+": the volume cannot be attached")
		})
	}
}

// TestALaunchThatFailedBeforeItWasListed has EC2's reason too: the response to the repeated
// call has no instance.
func TestALaunchThatFailedBeforeItWasListed(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		w.FailLaunches(1, "Client.InvalidKMSKey.InvalidState", "Client.InvalidKMSKey.InvalidState: the key is disabled")
		r := request(t)
		w.launch(r)
		time.Sleep(time.Minute)
		vm := w.launch(r)
		assert.Equal(t, instance.Failed, vm.State)
		assert.True(t, vm.Ended)
		assert.Equal(t, "the service has terminated the instance: Client.InvalidKMSKey.InvalidState: the key is disabled", vm.Reason)
	})
}
