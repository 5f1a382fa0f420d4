// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("free", "n1"), newNode("n2"), newPod("blocked", "n2"))
		expectMetrics(t, h.registry, `nstance_operator_drains{state="blocked"} 0`, `nstance_operator_drains{state="running"} 0`)
		h.rejectEviction = func(pod string) error {
			if pod == "blocked" {
				return errBudget
			}
			return nil
		}
		for _, node := range []string{"n1", "n2", "n3"} {
			h.announce(node, time.Now().Add(time.Hour))
		}
		advance(5 * time.Second)
		expectMetrics(t, h.registry, `nstance_operator_drains{state="blocked"} 0`, `nstance_operator_drains{state="running"} 1`)
		advance(time.Minute)
		expectMetrics(t, h.registry, `nstance_operator_drains{state="blocked"} 1`, `nstance_operator_drains{state="running"} 0`)
		h.withdraw("n2")
		advance(time.Second)
		h.deleteNode("n2")
		advance(time.Second)
		expectMetrics(t, h.registry,
			`nstance_operator_drain_duration_seconds_count{outcome="drained",reason="scale-down"} 1`,
			`nstance_operator_drain_duration_seconds_count{outcome="no_node",reason="scale-down"} 1`,
			`nstance_operator_drain_duration_seconds_count{outcome="withdrawn",reason="scale-down"} 1`,
			fmt.Sprintf("nstance_operator_evictions_refused_total %d", h.count("create pods/eviction")-1))
	})
}

// A server may report any reason; it must not create any number of series.
func TestReasonsAreBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := newMetrics(registry)
	for _, reason := range []string{"unhealthy", "i-0abc is on fire", "i-0abd is on fire", ""} {
		m.drainFinished(reason, -time.Second, drained)
	}
	expectMetrics(t, registry,
		`nstance_operator_drain_duration_seconds_count{outcome="drained",reason="unhealthy"} 1`,
		`nstance_operator_drain_duration_seconds_count{outcome="drained",reason="other"} 3`)
}

// expectMetrics fails the test unless these lines are among the metrics.
func expectMetrics(t *testing.T, registry *prometheus.Registry, lines ...string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	served := strings.Split(recorder.Body.String(), "\n")
	for _, line := range lines {
		if !slices.Contains(served, line) {
			t.Errorf("no metric %s", line)
		}
	}
}

// expectOutcomes compares the outcomes of all drains that were counted, as "outcome count".
func (h *harness) expectOutcomes(want ...string) {
	h.t.Helper()
	families, err := h.registry.Gather()
	require.NoError(h.t, err)
	var got []string
	for _, family := range families {
		if family.GetName() != "nstance_operator_drain_duration_seconds" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "outcome" {
					got = append(got, fmt.Sprintf("%s %d", label.GetValue(), metric.GetHistogram().GetSampleCount()))
				}
			}
		}
	}
	assert.Equal(h.t, want, got, "the outcomes")
}
