// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/stock"
)

// Operations of the provider, as labels.
const (
	callCreate   = "create"
	callDelete   = "delete"
	callCapacity = "capacity"
)

// Outcomes of drains, as labels.
const (
	drainAcknowledged = "acknowledged"
	drainTimeout      = "timeout"
	drainDown         = "gone"
)

// Metrics counts the actions of reconcilers. It lives as long as the process,
// through all its terms. No label identifies an instance, so the number of
// series is bounded.
type Metrics struct {
	durations      *prometheus.HistogramVec
	calls          *prometheus.CounterVec
	callDurations  *prometheus.HistogramVec
	created        *prometheus.CounterVec
	deleted        *prometheus.CounterVec
	drainsStarted  *prometheus.CounterVec
	drainsFinished *prometheus.CounterVec
	panics         prometheus.Counter
	// terminatedTargets counts terminations that stopped waiting for the deregistration.
	terminatedTargets prometheus.Counter
}

// NewMetrics registers the metrics of all reconcilers of the process.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nstance_server_reconcile_duration_seconds",
			Help:    "Duration of one reconciliation of one group, by outcome.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}, []string{"outcome"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nstance_server_provider_calls_total",
			Help: "Calls to the instance provider, by operation and outcome.",
		}, []string{"operation", "outcome"}),
		callDurations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nstance_server_provider_call_duration_seconds",
			Help:    "Duration of calls to the instance provider, by operation.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}, []string{"operation"}),
		created: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nstance_server_instances_created_total",
			Help: "Managed instances created, by reason.",
		}, []string{"reason"}),
		deleted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nstance_server_instances_deleted_total",
			Help: "Instances deleted, by reason.",
		}, []string{"reason"}),
		drainsStarted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nstance_server_drains_started_total",
			Help: "Drains started, by reason.",
		}, []string{"reason"}),
		drainsFinished: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nstance_server_drains_finished_total",
			Help: "Drains finished, by outcome: acknowledged, timeout, or gone when the instance was no longer running.",
		}, []string{"outcome"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nstance_server_reconcile_panics_total",
			Help: "Reconciliations that panicked; they are repeated.",
		}),
		terminatedTargets: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nstance_server_terminated_targets_total",
			Help: "Terminations of instances that were or may have been targets of a load balancer, because the deadline of their drain had passed.",
		}),
	}
	registry.MustRegister(m.durations, m.calls, m.callDurations, m.created, m.deleted, m.drainsStarted, m.drainsFinished, m.panics, m.terminatedTargets)
	return m
}

func (m *Metrics) reconciled(took time.Duration, err error) {
	m.durations.WithLabelValues(outcomeOf(err)).Observe(took.Seconds())
}

func (m *Metrics) called(operation string, took time.Duration, err error) {
	m.calls.WithLabelValues(operation, outcomeOf(err)).Inc()
	m.callDurations.WithLabelValues(operation).Observe(took.Seconds())
}

// drained counts the drain, if any, of an instance that is about to be
// terminated.
func (m *Metrics) drained(i *instance.Instance) {
	switch {
	case i.Drain == nil:
	case i.Drain.Acknowledged:
		m.drainsFinished.WithLabelValues(drainAcknowledged).Inc()
	case i.Down():
		m.drainsFinished.WithLabelValues(drainDown).Inc()
	default:
		m.drainsFinished.WithLabelValues(drainTimeout).Inc()
	}
}

func outcomeOf(err error) string {
	if err != nil {
		return "error"
	}
	return "success"
}

var (
	groupSize = prometheus.NewDesc("nstance_server_group_size",
		"Desired number of managed instances of a group.", []string{"tenant", "group"}, nil)
	groupInstances = prometheus.NewDesc("nstance_server_group_instances",
		"Instances of a group that are not deleted, by state and whether they are on-demand. Draining instances have the state draining.",
		[]string{"tenant", "group", "state", "on_demand"}, nil)
	groupCandidates = prometheus.NewDesc("nstance_server_group_candidates",
		"Managed instances of each candidate of a group that are not being deleted.", []string{"tenant", "group", "candidate"}, nil)
)

// Collector exports the current sizes and instances of all groups. It belongs
// to one term and must be unregistered at the end of the term.
type Collector struct {
	Groups    Groups
	Instances Instances
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- groupSize
	descriptions <- groupInstances
	descriptions <- groupCandidates
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	for _, key := range c.Groups.Keys() {
		group, found := c.Groups.Get(key)
		if !found {
			continue
		}
		metrics <- prometheus.MustNewConstMetric(groupSize, prometheus.GaugeValue, float64(group.Size), key.Tenant, key.Group)
		if len(group.Variants) > 0 {
			for _, use := range (*stock.Stock)(nil).Uses(group, c.Instances.List(key)) {
				metrics <- prometheus.MustNewConstMetric(groupCandidates, prometheus.GaugeValue, float64(use.Instances), key.Tenant, key.Group, use.Variant.Name)
			}
		}
	}
	type kind struct {
		state    string
		onDemand bool
	}
	for _, key := range c.Instances.Keys() {
		counts := map[kind]int{}
		for _, i := range c.Instances.List(key) {
			counts[kind{stateOf(&i), i.OnDemand}]++
		}
		for kind, count := range counts {
			metrics <- prometheus.MustNewConstMetric(groupInstances, prometheus.GaugeValue, float64(count),
				key.Tenant, key.Group, kind.state, strconv.FormatBool(kind.onDemand))
		}
	}
}

// stateOf returns the state of an instance as a label.
func stateOf(i *instance.Instance) string {
	switch {
	case i.DeleteReason != "" || i.State == instance.Terminating:
		return "terminating"
	case i.Drain != nil:
		return "draining"
	}
	switch i.State {
	case instance.Pending:
		return "pending"
	case instance.Running:
		return "running"
	case instance.Impaired:
		return "impaired"
	case instance.Stopped:
		return "stopped"
	case instance.Failed:
		return "failed"
	default:
		return "missing"
	}
}
