// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	limitHits prometheus.Counter
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{limitHits: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "nstance_operator_on_demand_limit_hits_total",
		Help: "Attempts to create the machine of a Pod that --on-demand-limit has prevented; each attempt is counted.",
	})}
	registry.MustRegister(m.limitHits)
	return m
}
