// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
)

// wantMetrics compares the counters and gauges whose names start with one of
// the prefixes.
func wantMetrics(t *testing.T, registry prometheus.Gatherer, prefixes []string, want ...string) {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	var got []string
	for _, family := range families {
		if !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(family.GetName(), prefix) }) {
			continue
		}
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, label.GetName()+"="+label.GetValue())
			}
			value := metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			got = append(got, fmt.Sprintf("%s{%s} %v", strings.TrimPrefix(family.GetName(), "nstance_server_"), strings.Join(labels, ","), value))
		}
	}
	assert.Empty(t, cmp.Diff(want, got), "metrics (-want +got)")
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		ids := s.run(workersKey, 3)
		s.cloud.rejectNext("delete", 1)
		s.scale(workersKey, 0)
		s.acknowledge(workersKey, ids[0])
		s.pass(time.Second)
		s.cloud.vanish(ids[1])
		synctest.Wait()
		s.pass(5 * time.Minute)
		s.settle()
		wantMetrics(t, s.metrics, []string{"nstance_server_drains", "nstance_server_instances", "nstance_server_provider"},
			"drains_finished_total{outcome=acknowledged} 1",
			"drains_finished_total{outcome=gone} 1",
			"drains_finished_total{outcome=timeout} 1",
			"drains_started_total{reason=scale-down} 3",
			"instances_created_total{reason=scale-up} 3",
			"instances_deleted_total{reason=scale-down} 3",
			"provider_call_duration_seconds{operation=capacity} 3",
			"provider_call_duration_seconds{operation=create} 3",
			"provider_call_duration_seconds{operation=delete} 4",
			"provider_calls_total{operation=capacity,outcome=success} 3",
			"provider_calls_total{operation=create,outcome=success} 3",
			"provider_calls_total{operation=delete,outcome=error} 1",
			"provider_calls_total{operation=delete,outcome=success} 3",
		)
	})
}

func TestCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		ids := s.run(workersKey, 3)
		s.scale(workersKey, 2)
		s.cloud.become(ids[2], instance.Impaired)
		synctest.Wait()
		s.cloud.rejectCalls(noCreates)
		s.scale(otherKey, 1)
		s.onDemand(otherKey, func(*instance.Record) {})
		registry := prometheus.NewRegistry()
		registry.MustRegister(&Collector{Groups: s.groups, Instances: s.instances})
		wantMetrics(t, registry, []string{""},
			"group_instances{group=other,on_demand=false,state=pending,tenant=default} 1",
			"group_instances{group=other,on_demand=true,state=pending,tenant=default} 1",
			"group_instances{group=workers,on_demand=false,state=draining,tenant=default} 2",
			"group_instances{group=workers,on_demand=false,state=pending,tenant=default} 1",
			"group_instances{group=workers,on_demand=false,state=running,tenant=default} 1",
			"group_size{group=nodrain,tenant=default} 0",
			"group_size{group=other,tenant=default} 1",
			"group_size{group=workers,tenant=default} 2",
		)
		// The next term registers its own collector.
		if !registry.Unregister(&Collector{}) {
			t.Error("cannot be unregistered")
		}
	})
}
