// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud_test

import (
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestBudgets: calls begin with a burst, and then come at the rate of the cloud.
func TestBudgets(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.restart()
		w.count()
		limits := w.cloud.Limits
		// A request that may come from a former process is searched for first, which is a read.
		want := map[string]instance.State{}
		var formers []provider.Spec
		for range 100 {
			former := spec("nonce")
			former.ID = providertest.NewID(t)
			w.expect(former.ID)
			want[w.MustCreate(former)] = instance.Running
			formers = append(formers, former)
		}
		for range 100 {
			want[w.MustCreate(spec("nonce"))] = instance.Running
		}
		for seconds := range 4 {
			synctest.Wait()
			calls := w.count()
			reads, writes := limits.Reads.PerSecond, limits.Writes.PerSecond
			if seconds == 0 {
				reads, writes = float64(limits.Reads.Burst), float64(limits.Writes.Burst)
			}
			if got := float64(calls.finds + calls.lists); got > reads+1 {
				t.Errorf("in second %d there were %.0f reads, want at most %.0f", seconds, got, reads)
			}
			if got := float64(calls.launches); got > writes+1 {
				t.Errorf("in second %d there were %.0f launches, want at most %.0f", seconds, got, writes)
			}
			time.Sleep(time.Second)
		}
		// After the search their nonces are too old.
		time.Sleep(2 * visibilityDelay)
		for _, former := range formers {
			if _, known := w.Get(former.ID); known {
				t.Errorf("instance %s was launched with the nonce of its first request", former.ID)
			}
			w.MustCreate(former)
		}
		w.Await(workers, want)
		if finds := w.faults.Count(cloudtest.Find); finds == 0 {
			t.Error("no machine was searched for")
		}
	})
}
