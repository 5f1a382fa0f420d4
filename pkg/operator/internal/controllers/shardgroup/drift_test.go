// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// Two writers without revisions that change a group back in turn must not do so as fast
// as they can: each change creates or terminates instances.
func TestRepeatedDriftIsCorrectedMoreAndMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarnessOf(t, func(h *harness) { h.Clock = clock.RealClock{} }, newObject())
		start := time.Now()
		var sent []time.Duration
		h.Fake.OnUpsert = func(_, _ string, config shard.GroupConfig) (shard.Group, error) {
			sent = append(sent, time.Since(start))
			// The other writer follows when the reply is in the cache.
			time.AfterFunc(10*time.Millisecond, func() {
				h.Fake.SetGroup("a", *changed(reported(), func(g *shard.Group) { g.Size = 1 }))
				h.controller.groupChanged("a", "workers")
			})
			return accept(config)
		}
		ctx, cancel := context.WithTimeout(h.Ctx, time.Hour)
		defer cancel()
		h.controller.shardGroupChanged(nil, newObject())
		go h.controller.Run(ctx)
		for ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond)
			// The controller waits until the cache has what it has written.
			h.Show()
		}
		synctest.Wait()

		t.Logf("sent %d times within an hour", len(sent))
		require.Greater(t, len(sent), 60)
		assert.Less(t, len(sent), 75)
		assert.Less(t, sent[1], 2*time.Second, "the first correction is made at once")
		for i := 10; i < len(sent); i++ {
			assert.GreaterOrEqual(t, sent[i]-sent[i-1], lastCorrectionDelay)
		}
		if events := h.Events(); assert.NotEmpty(t, events) {
			assert.Contains(t, events[0], `Warning DriftRepeated the group on shard "a" was changed by another writer and corrected 3 times since `)
		}
	})
}

func TestChangeOfTheObjectIsNoCorrection(t *testing.T) {
	h := newHarness(t, newObject())
	h.Expect(upsert3, writeStatus)
	drift := func() { h.setGroup(changed(reported(), func(g *shard.Group) { g.Size = 1 })) }
	drift()
	h.Expect(upsert3, writeStatus)
	drift()
	assert.Equal(t, time.Second, h.Expect(writeStatus), "until the second correction")
	h.change(func(object *v1beta1.NstanceShardGroup) { object.Spec.Size = 4 })
	h.Expect("upsert workers on a with size 4", writeStatus)
	drift()
	h.Expect("upsert workers on a with size 4")
	h.ExpectSeries(`nstance_operator_drift_corrections_total{shard="a"} 2`)
}

func TestEachConfiguredShardHasACount(t *testing.T) {
	h := newHarness(t)
	h.ExpectSeries()
	h.Fake.NotifyShard("a")
	h.ExpectSeries(`nstance_operator_drift_corrections_total{shard="a"} 0`)
	h.Fake.Update(func() { delete(h.Fake.ByID, "a") })
	h.Fake.NotifyShard("a")
	h.ExpectSeries()
}

func TestRareDriftIsCorrectedAtOnce(t *testing.T) {
	h := newHarness(t, newObject())
	h.Expect(upsert3, writeStatus)
	for range 5 {
		h.Advance(driftForgotten)
		h.setGroup(changed(reported(), func(g *shard.Group) { g.Size = 1 }))
		did, _, err := h.Sync()
		require.NoError(t, err)
		assert.Contains(t, did, upsert3)
	}
	h.ExpectEvents()
}
