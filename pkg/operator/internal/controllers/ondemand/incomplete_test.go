// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
)

// The machine of a Pod that was deleted while the Pods were not known is deleted when they
// are: no event reports the Pod.
func TestMachinesArePlannedWhenPodsAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod("deleted", "gpu")
		h := newHarness(t, 0, newShards("gpu"))
		h.store("nstancemachines", newNstanceMachine(pod))
		h.store("machines", newMachine(pod))
		h.show()
		var synced atomic.Bool
		h.controller.podsSynced = synced.Load
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), quiet(t)), time.Hour)
		defer cancel()
		go h.controller.Run(ctx)
		time.Sleep(time.Minute)
		if len(h.writes) > 0 {
			t.Errorf("wrote %q before the Pods are known", h.writes)
		}
		synced.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []string{"delete machines " + machineName(pod.UID)}; !slices.Equal(slices.Compact(h.writes), want) {
			t.Errorf("wrote %q, want %q", h.writes, want)
		}
	})
}
