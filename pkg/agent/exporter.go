// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"nstance.dev/operator/pkg/agent/identity"
)

// Outcomes of patches, values of a label.
const (
	patchApplied = "applied"
	patchFailed  = "failed"
)

// exporter has the metrics of the agent (docs/agent.md#metrics).
type exporter struct {
	registry   *prometheus.Registry
	reports    prometheus.Counter
	lastReport prometheus.Gauge
	patches    *prometheus.CounterVec
	notice     prometheus.Gauge
}

func newExporter(id *identity.Identity) *exporter {
	e := &exporter{
		registry: prometheus.NewRegistry(),
		reports: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nstance_agent_reports_total",
			Help: "Reports that were sent.",
		}),
		lastReport: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nstance_agent_last_report_timestamp_seconds",
			Help: "When the last report was sent, 0 before the first.",
		}),
		patches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nstance_agent_patches_total",
			Help: "Patches of files, by outcome.",
		}, []string{"outcome"}),
		notice: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nstance_agent_termination_notice",
			Help: "1 if the cloud has announced to terminate the machine.",
		}),
	}
	for _, outcome := range []string{patchApplied, patchFailed} {
		e.patches.WithLabelValues(outcome)
	}
	e.registry.MustRegister(e.reports, e.lastReport, e.patches, e.notice, certificates{id},
		versioncollector.NewCollector("nstance_agent"), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return e
}

func (e *exporter) handler() http.Handler {
	return promhttp.HandlerFor(e.registry, promhttp.HandlerOpts{})
}

// sent counts a report.
func (e *exporter) sent() {
	e.reports.Inc()
	e.lastReport.SetToCurrentTime()
}

// patched counts a patch.
func (e *exporter) patched(err error) {
	outcome := patchApplied
	if err != nil {
		outcome = patchFailed
	}
	e.patches.WithLabelValues(outcome).Inc()
}

// certificates collects what the certificate of the instance says at each scrape.
type certificates struct {
	identity *identity.Identity
}

var (
	registeredMetric = prometheus.NewDesc("nstance_agent_registered", "1 if the instance has a valid certificate.", nil, nil)
	expiryMetric     = prometheus.NewDesc("nstance_agent_certificate_expiration_timestamp_seconds", "When the certificate of the instance expires.", nil, nil)
)

// Describe implements prometheus.Collector.
func (certificates) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- registeredMetric
	descriptions <- expiryMetric
}

// Collect implements prometheus.Collector. Without a certificate there is no expiry.
func (c certificates) Collect(metrics chan<- prometheus.Metric) {
	registered := 0.0
	if certificate, err := c.identity.Certificate(); err == nil && certificate != nil {
		if !certificate.Expired(time.Now()) {
			registered = 1
		}
		metrics <- prometheus.MustNewConstMetric(expiryMetric, prometheus.GaugeValue, float64(certificate.Leaf.NotAfter.Unix()))
	}
	metrics <- prometheus.MustNewConstMetric(registeredMetric, prometheus.GaugeValue, registered)
}
