// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	corrections *prometheus.CounterVec
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{corrections: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nstance_operator_drift_corrections_total",
		Help: "Groups that were sent to their shard again although their shard group had not changed, because another writer has changed the group or the shard has lost it, by shard.",
	}, []string{"shard"})}
	registry.MustRegister(m.corrections)
	return m
}

// setShard has the metrics of each configured shard, and of no other. They are 0 before the
// first correction: an increase from a missing value cannot be seen.
func (m *metrics) setShard(id string, configured bool) {
	if configured {
		m.corrections.WithLabelValues(id)
	} else {
		m.corrections.DeleteLabelValues(id)
	}
}
