// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"slices"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const namespace = "nstance_operator"

// outcome is how a drain has ended.
type outcome string

const (
	// drained: no Pod was left that had to leave.
	drained outcome = "drained"
	// volumesAttached: nor was here, but their volumes were not detached.
	volumesAttached outcome = "volumes_attached"
	// noNode: the instance had no Node.
	noNode outcome = "no_node"
	// timedOut: the shard's deadline came first.
	timedOut outcome = "timed_out"
	// deleted: the shard has deleted the instance without an acknowledgement.
	deleted outcome = "deleted"
	// withdrawn: the shard no longer tells of it.
	withdrawn outcome = "withdrawn"
)

// reasons are those of the wire contract. What else a shard says counts as one, so
// that it cannot make more and more series.
var reasons = []string{"unhealthy", "config-drift", "expired", "scale-down"}

var (
	drainDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Namespace:      namespace,
		Name:           "drain_duration_seconds",
		Help:           "Time from the beginning of a drain to its acknowledgement or other end, by the shard's reason and by how it ended.",
		Buckets:        []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200},
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason", "outcome"})
	drains = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace:      namespace,
		Name:           "drains",
		Help:           "Drains that are not acknowledged, by state: running, or blocked by a Pod that cannot be evicted or by more than one Node with the same provider id.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"state"})
	evictionsRefused = metrics.NewCounter(&metrics.CounterOpts{
		Namespace:      namespace,
		Name:           "evictions_refused_total",
		Help:           "Evictions that the API server has refused, each try counted.",
		StabilityLevel: metrics.ALPHA,
	})
)

func init() { legacyregistry.MustRegister(drainDuration, drains, evictionsRefused) }

// observeDrain counts the end of a drain.
func observeDrain(reason string, took time.Duration, end outcome) {
	if !slices.Contains(reasons, reason) {
		reason = "other"
	}
	drainDuration.WithLabelValues(reason, string(end)).Observe(max(took, 0).Seconds())
}
