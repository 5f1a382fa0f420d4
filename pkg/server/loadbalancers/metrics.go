// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package loadbalancers

import (
	"github.com/prometheus/client_golang/prometheus"

	"nstance.dev/operator/pkg/server/provider"
)

// Operations, as in the metrics and in messages.
const (
	operationRegister   = "register"
	operationDeregister = "deregister"
	operationList       = "list"
)

// States of targets, as in the metrics.
const (
	stateRegistered    = "registered"
	stateRegistering   = "registering"
	stateDeregistering = "deregistering"
)

// Metrics are those of all terms of the process.
type Metrics struct {
	calls *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{calls: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nstance_server_load_balancer_calls_total",
		Help: "Calls for the targets of load balancers, by operation and outcome.",
	}, []string{"operation", "outcome"})}
	registry.MustRegister(m.calls)
	return m
}

func (m *Metrics) called(operation string, err error) {
	outcome := "success"
	if err != nil {
		outcome = "error"
	}
	m.calls.WithLabelValues(operation, outcome).Inc()
}

// targets is how many instances are targets, by load balancer and state.
var targets = prometheus.NewDesc("nstance_server_load_balancer_targets",
	"Instances that are targets of a load balancer or are to be, by load balancer and state.", []string{"load_balancer", "state"}, nil)

// listed is whether the targets are known.
var listed = prometheus.NewDesc("nstance_server_load_balancer_listed",
	"1 while the targets of a load balancer are known, 0 after they could not be listed.", []string{"load_balancer"}, nil)

var _ prometheus.Collector = (*Syncer)(nil)

// Describe implements prometheus.Collector.
func (s *Syncer) Describe(descs chan<- *prometheus.Desc) {
	descs <- targets
	descs <- listed
}

// Collect implements prometheus.Collector.
func (s *Syncer) Collect(metrics chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, b := range s.balancers {
		counts := map[string]int{stateRegistered: 0, stateRegistering: 0, stateDeregistering: 0}
		for _, t := range b.targets {
			switch {
			case t.listed && t.state == provider.Draining, t.deregistered:
				counts[stateDeregistering]++
			case t.listed && t.state == provider.Registered:
				counts[stateRegistered]++
			case t.possible:
				counts[stateRegistering]++
			}
		}
		for state, count := range counts {
			metrics <- prometheus.MustNewConstMetric(targets, prometheus.GaugeValue, float64(count), name, state)
		}
		known := 0.0
		if b.listed && b.failures == 0 {
			known = 1
		}
		metrics <- prometheus.MustNewConstMetric(listed, prometheus.GaugeValue, known, name)
	}
}
