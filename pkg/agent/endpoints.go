// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/agent/internal/identity"
	"nstance.dev/operator/pkg/base/httpserver"
)

// health serves /healthz (the process runs), /readyz (reports are being sent) and /metrics.
type health struct {
	metrics http.Handler

	mu sync.Mutex
	// ready is nil until the instance is registered.
	ready func() error
}

// setReady sets the check of /readyz, once the instance is registered.
func (h *health) setReady(ready func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready = ready
}

func (h *health) checkReady() error {
	h.mu.Lock()
	ready := h.ready
	h.mu.Unlock()
	if ready == nil {
		return errors.New("the instance is not registered yet")
	}
	return ready()
}

// serve serves at address until ctx is done. With an empty address it serves nothing. It
// returns once the address is bound.
func (h *health) serve(ctx context.Context, address string) error {
	if address == "" {
		return nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen on --health-addr %s: %w", address, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, h.checkReady()) })
	mux.Handle("GET /metrics", h.metrics)
	go func() {
		if err := httpserver.Serve(ctx, listener, nil, mux); err != nil {
			klog.FromContext(ctx).Error(err, "HTTP server stopped", "address", address)
		}
	}()
	return nil
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprint(w, "ok")
}

// Values of the label outcome of nstance_agent_patches_total.
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

// sent counts a report that was sent.
func (e *exporter) sent() {
	e.reports.Inc()
	e.lastReport.SetToCurrentTime()
}

// patched counts a patch, by whether err is nil.
func (e *exporter) patched(err error) {
	outcome := patchApplied
	if err != nil {
		outcome = patchFailed
	}
	e.patches.WithLabelValues(outcome).Inc()
}

// certificates reads the certificate of the instance at each scrape.
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

// Collect implements prometheus.Collector. Without a certificate the expiry is left out.
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
