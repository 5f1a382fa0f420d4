// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// outcome is the outcome of a drain.
type outcome string

const (
	// drained: all Pods that had to leave were evicted.
	drained outcome = "drained"
	// volumesAttached: all Pods were evicted, but some of their volumes are still
	// attached.
	volumesAttached outcome = "volumes_attached"
	// noNode: the instance had no Node.
	noNode outcome = "no_node"
	// timedOut: the shard's deadline was reached before the drain was complete.
	timedOut outcome = "timed_out"
	// deleted: the shard deleted the instance without an acknowledgement.
	deleted outcome = "deleted"
	// withdrawn: the shard no longer reports the notice.
	withdrawn outcome = "withdrawn"
)

// reasons are the reasons that are a label value (docs/protocol.md#drains). Other reasons are
// counted as "other", so that a server cannot create any number of series.
var reasons = []string{"unhealthy", "config-drift", "expired", "scale-down", "spot"}

// metrics are the metrics of drains. They have no label with the name of an
// instance, so their number is bounded.
type metrics struct {
	duration         *prometheus.HistogramVec
	drains           *prometheus.GaugeVec
	evictionsRefused prometheus.Counter
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nstance_operator_drain_duration_seconds",
			Help:    "Time from the start of a drain to its acknowledgement or other outcome, by the shard's reason and by outcome.",
			Buckets: []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200},
		}, []string{"reason", "outcome"}),
		drains: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nstance_operator_drains",
			Help: "Drains that are not acknowledged, by state: running, waiting for a Pod that may complete, or blocked by a Pod that cannot be evicted or by more than one Node with the same provider id.",
		}, []string{"state"}),
		evictionsRefused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nstance_operator_evictions_refused_total",
			Help: "Evictions that the API server rejected; each attempt is counted.",
		}),
	}
	// A state without drains is 0, and not missing.
	m.setDrains(0, 0, 0)
	registry.MustRegister(m.duration, m.drains, m.evictionsRefused)
	return m
}

// drainFinished counts a drain.
func (m *metrics) drainFinished(reason string, took time.Duration, result outcome) {
	if !slices.Contains(reasons, reason) {
		reason = "other"
	}
	m.duration.WithLabelValues(reason, string(result)).Observe(max(took, 0).Seconds())
}

// setDrains sets the number of drains that are not acknowledged.
func (m *metrics) setDrains(running, waiting, blocked int) {
	m.drains.WithLabelValues("running").Set(float64(running))
	m.drains.WithLabelValues("waiting").Set(float64(waiting))
	m.drains.WithLabelValues("blocked").Set(float64(blocked))
}
