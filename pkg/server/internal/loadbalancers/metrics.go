// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package loadbalancers

import (
	"slices"

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

// Metrics are the metrics of load balancers. They outlive the terms of the process.
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
	parts := map[string][]*part{}
	for _, p := range s.parts {
		for _, label := range p.labels() {
			parts[label] = append(parts[label], p)
		}
	}
	for label, parts := range parts {
		for state, count := range countTargets(label, parts) {
			metrics <- prometheus.MustNewConstMetric(targets, prometheus.GaugeValue, float64(count), label, state)
		}
		known := 1.0
		for _, p := range parts {
			if !p.listed || p.failures > 0 {
				known = 0
			}
		}
		metrics <- prometheus.MustNewConstMetric(listed, prometheus.GaugeValue, known, label)
	}
}

// countTargets counts the instances at the parts of an entry by state. An instance is
// registered if it is registered at all parts, and deregistering if it is deregistering at
// each part that has it.
func countTargets(entry string, parts []*part) map[string]int {
	states := map[string]map[string]int{}
	for _, p := range parts {
		for id, t := range p.targets {
			state := t.metricState()
			if state == "" || t.entries != nil && !p.dropped() && !slices.Contains(t.entries, entry) {
				continue // a target for another entry
			}
			if states[id] == nil {
				states[id] = map[string]int{}
			}
			states[id][state]++
		}
	}
	counts := map[string]int{stateRegistered: 0, stateRegistering: 0, stateDeregistering: 0}
	for _, at := range states {
		switch {
		case at[stateRegistered] == len(parts):
			counts[stateRegistered]++
		case at[stateRegistered]+at[stateRegistering] == 0:
			counts[stateDeregistering]++
		default:
			counts[stateRegistering]++
		}
	}
	return counts
}

// metricState returns the state of a target at one part, empty if it is not a target.
func (t *target) metricState() string {
	switch {
	case t.is(provider.Draining), t.deregistered:
		return stateDeregistering
	case t.is(provider.Registered):
		return stateRegistered
	case t.possible:
		return stateRegistering
	}
	return ""
}
