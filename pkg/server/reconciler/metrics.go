// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"nstance.dev/operator/pkg/server/instance"
)

// The calls to the provider that are counted.
const (
	callCreate   = "create"
	callDelete   = "delete"
	callCapacity = "capacity"
)

// How drains end.
const (
	drainAcknowledged = "acknowledged"
	drainTimeout      = "timeout"
	drainGone         = "gone"
)

// Metrics count what reconcilers do. They live as long as the process, through
// all its terms. None has an instance for a label, so that they do not grow.
type Metrics struct {
	durations     *prometheus.HistogramVec
	calls         *prometheus.CounterVec
	callDurations *prometheus.HistogramVec
	created       *prometheus.CounterVec
	deleted       *prometheus.CounterVec
	drainsStarted *prometheus.CounterVec
	drainsEnded   *prometheus.CounterVec
}

// NewMetrics registers the metrics of all reconcilers of the process.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nstance_server_reconcile_duration_seconds",
			Help:    "How long looking at one group and acting on it takes, by outcome.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}, []string{"outcome"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nstance_server_provider_calls_total",
			Help: "Calls to the instance provider, by operation and outcome.",
		}, []string{"operation", "outcome"}),
		callDurations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nstance_server_provider_call_duration_seconds",
			Help:    "How long calls to the instance provider take, by operation.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}, []string{"operation"}),
		created: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nstance_server_instances_created_total",
			Help: "Managed instances decided on, by reason.",
		}, []string{"reason"}),
		deleted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nstance_server_instances_deleted_total",
			Help: "Instances that are gone, by the reason for which they were ended.",
		}, []string{"reason"}),
		drainsStarted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nstance_server_drains_started_total",
			Help: "Drains begun, by reason.",
		}, []string{"reason"}),
		drainsEnded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nstance_server_drains_finished_total",
			Help: "Drains over, by outcome: acknowledged, timeout, or gone when nothing ran on the instance any more.",
		}, []string{"outcome"}),
	}
	registry.MustRegister(m.durations, m.calls, m.callDurations, m.created, m.deleted, m.drainsStarted, m.drainsEnded)
	return m
}

func (m *Metrics) reconciled(took time.Duration, err error) {
	m.durations.WithLabelValues(outcomeOf(err)).Observe(took.Seconds())
}

func (m *Metrics) called(operation string, took time.Duration, err error) {
	m.calls.WithLabelValues(operation, outcomeOf(err)).Inc()
	m.callDurations.WithLabelValues(operation).Observe(took.Seconds())
}

// drained counts the drain of an instance that is about to be ended, if any.
func (m *Metrics) drained(i *instance.Instance) {
	switch {
	case i.Drain == nil:
	case i.Drain.Acknowledged:
		m.drainsEnded.WithLabelValues(drainAcknowledged).Inc()
	case i.Gone():
		m.drainsEnded.WithLabelValues(drainGone).Inc()
	default:
		m.drainsEnded.WithLabelValues(drainTimeout).Inc()
	}
}

func outcomeOf(err error) string {
	if err != nil {
		return "error"
	}
	return "success"
}
