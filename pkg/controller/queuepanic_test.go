// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"
)

// One object that makes a sync panic must not end the process, and with it all work, and
// then that of the standby.
func TestQueueSurvivesAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := cache.NewObjectName("default", "other")
		j := &journal{start: time.Now(), answer: func(int) (time.Duration, error) { return 0, nil }}
		var panicked []time.Duration
		SyncPanics.Reset()
		runQueue(t, func(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
			if key == workers {
				panicked = append(panicked, time.Since(j.start))
				panic("index out of range")
			}
			return j.sync(ctx, key)
		}, 59*time.Second, func(q *Queue[cache.ObjectName]) {
			q.Add(workers)
			q.AddAfter(other, time.Second)
			q.AddAfter(other, 2*time.Second)
		})
		assert.Equal(t, []time.Duration{time.Second}, j.times(), "syncs of the other key")
		assert.Equal(t, []time.Duration{0, lastRetry, 2 * lastRetry}, panicked, "syncs of the key that panics")
		registry := prometheus.NewRegistry()
		registry.MustRegister(SyncPanics)
		families, err := registry.Gather()
		require.NoError(t, err)
		require.Len(t, families, 1)
		assert.InDelta(t, 3, families[0].GetMetric()[0].GetCounter().GetValue(), 0)
	})
}
