// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"
)

func TestSyncsAreMeasuredByResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		SyncDuration.Reset()
		syncs := 0
		runQueue(t, func(context.Context, cache.ObjectName) (time.Duration, error) {
			syncs++
			<-time.After(time.Duration(syncs) * time.Second)
			switch syncs {
			case 1:
				return 0, errors.New("not yet")
			case 2:
				panic("index out of range")
			}
			return 0, nil
		}, time.Minute, func(q *Queue[cache.ObjectName]) { q.Add(workers) })

		registry := prometheus.NewRegistry()
		registry.MustRegister(SyncDuration)
		families, err := registry.Gather()
		require.NoError(t, err)
		require.Len(t, families, 1)
		got := map[string]float64{}
		for _, metric := range families[0].GetMetric() {
			got[metric.GetLabel()[1].GetValue()] = metric.GetHistogram().GetSampleSum()
		}
		assert.Equal(t, map[string]float64{"error": 1, "panic": 2, "success": 3}, got, "seconds")
	})
}
