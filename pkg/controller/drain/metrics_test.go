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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
)

func TestMetrics(t *testing.T) {
	legacyregistry.Reset()
	t.Cleanup(legacyregistry.Reset)
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newPod("free", "n1"), newNode("n2"), newPod("held", "n2"))
		w.refuse = func(pod string) error {
			if pod == "held" {
				return errBudget
			}
			return nil
		}
		for _, node := range []string{"n1", "n2", "n3"} {
			w.tell(node, time.Now().Add(time.Hour))
		}
		after(5 * time.Second)
		wantMetrics(t, `nstance_operator_drains{state="blocked"} 0`, `nstance_operator_drains{state="running"} 1`)
		after(time.Minute)
		wantMetrics(t, `nstance_operator_drains{state="blocked"} 1`, `nstance_operator_drains{state="running"} 0`)
		w.drop("n2")
		after(time.Second)
		if err := w.CoreV1().Nodes().Delete(t.Context(), "n2", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		after(time.Second)
		wantMetrics(t,
			`nstance_operator_drain_duration_seconds_count{outcome="drained",reason="scale-down"} 1`,
			`nstance_operator_drain_duration_seconds_count{outcome="no_node",reason="scale-down"} 1`,
			`nstance_operator_drain_duration_seconds_count{outcome="withdrawn",reason="scale-down"} 1`,
			fmt.Sprintf("nstance_operator_evictions_refused_total %d", w.count("create pods/eviction")-1))
	})
}

// What a server says may be anything; the number of series is not its to decide.
func TestReasonsAreBounded(t *testing.T) {
	legacyregistry.Reset()
	t.Cleanup(legacyregistry.Reset)
	for _, reason := range []string{"unhealthy", "i-0abc is on fire", "i-0abd is on fire", ""} {
		observeDrain(reason, -time.Second, drained)
	}
	wantMetrics(t,
		`nstance_operator_drain_duration_seconds_count{outcome="drained",reason="unhealthy"} 1`,
		`nstance_operator_drain_duration_seconds_count{outcome="drained",reason="other"} 3`)
}

// wantMetrics fails the test unless these lines are among the metrics.
func wantMetrics(t *testing.T, lines ...string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	legacyregistry.Handler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	served := strings.Split(recorder.Body.String(), "\n")
	for _, line := range lines {
		if !slices.Contains(served, line) {
			t.Errorf("no metric %s", line)
		}
	}
}
