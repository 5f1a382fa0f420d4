// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agenthealth

import "github.com/prometheus/client_golang/prometheus"

var (
	agentsExpected = prometheus.NewDesc("nstance_server_agents_expected",
		"Agents that have to report.", nil, nil)
	agentsSilent = prometheus.NewDesc("nstance_server_agents_silent",
		"Agents that have to report, and do not.", nil, nil)
	certificatesExpired = prometheus.NewDesc("nstance_server_agent_certificates_expired",
		"Agents of instances whose certificate has expired.", nil, nil)
)

// counts are the numbers of agents when they were judged last.
type counts struct {
	expected, silent int
	// expired is the number of agents whose certificate has expired.
	expired int
}

// Describe implements prometheus.Collector. A Tracker is registered for one term.
func (t *Tracker) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- agentsExpected
	descriptions <- agentsSilent
	descriptions <- certificatesExpired
}

// Collect implements prometheus.Collector.
func (t *Tracker) Collect(metrics chan<- prometheus.Metric) {
	t.mu.Lock()
	counts := t.counts
	t.mu.Unlock()
	for description, value := range map[*prometheus.Desc]int{
		agentsExpected: counts.expected, agentsSilent: counts.silent, certificatesExpired: counts.expired,
	} {
		metrics <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, float64(value))
	}
}
