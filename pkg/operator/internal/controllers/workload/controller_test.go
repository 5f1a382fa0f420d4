// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package workload

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/testing/runtest"
)

// The state follows the API server. Handlers are called when it has changed, but not for
// another text of the same error.
func TestStateFollowsTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := controllertest.NewHarness(t, shardtest.New())
		var current atomic.Pointer[error]
		h.KubeClient.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			failure := *current.Load()
			return failure != nil, nil, failure
		})
		registry := prometheus.NewRegistry()
		h.Metrics = registry
		c := New(h.Dependencies, "https://workload:6443")
		assert.Empty(t, c.State().Status, "before the first request")
		var calls atomic.Int32
		c.AddHandler(func() { calls.Add(1) })
		for i, step := range []struct {
			failure        error
			status         metav1.ConditionStatus
			reason, within string
			calls          int
			metric         float64
		}{
			{nil, metav1.ConditionTrue, "Reachable", "", 1, 1},
			{errors.New("connection refused"), metav1.ConditionFalse, "WorkloadClusterUnreachable", "https://workload:6443 cannot be listed", 2, 0},
			{errors.New("connection reset"), metav1.ConditionFalse, "WorkloadClusterUnreachable", "connection refused", 2, 0},
			{apierrors.NewForbidden(corev1.Resource("nodes"), "", nil), metav1.ConditionFalse, "Forbidden", "forbidden", 3, 0},
			{nil, metav1.ConditionTrue, "Reachable", "", 4, 1},
		} {
			current.Store(&step.failure)
			if i == 0 {
				defer runtest.Start(t, c.Run)()
			}
			time.Sleep(period + time.Second)
			synctest.Wait()
			state := c.State()
			assert.Equal(t, step.status, state.Status, "%v", step.failure)
			assert.Equal(t, step.reason, state.Reason, "%v", step.failure)
			assert.Contains(t, state.Message, step.within)
			assert.Equal(t, step.calls, int(calls.Load()), "calls of the handler after %v", step.failure)
			families, err := registry.Gather()
			require.NoError(t, err)
			require.Len(t, families, 1)
			assert.InDelta(t, step.metric, families[0].GetMetric()[0].GetGauge().GetValue(), 0)
		}
	})
}
