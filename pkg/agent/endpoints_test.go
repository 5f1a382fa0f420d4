// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent_test

import (
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/httpserver/httpservertest"
	"nstance.dev/operator/pkg/testing/runtest"
)

// scrape returns the metrics of the agent by name and labels. The map is empty while the
// agent does not serve.
func (m *machine) scrape() map[string]float64 {
	metrics := map[string]float64{}
	response, err := http.Get("http://" + m.Options.HealthAddress + "/metrics")
	if err != nil {
		return metrics
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(m.t, err)
	for line := range strings.Lines(string(body)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if value, err := strconv.ParseFloat(text, 64); err == nil && !strings.HasPrefix(line, "#") {
			metrics[name] = value
		}
	}
	return metrics
}

func TestTheConnectionsOfTheHealthAddressAreLimited(t *testing.T) {
	t.Parallel()
	m := newMachine(t, startWithFiles(t, someFiles, "1"))
	m.Options.HealthAddress = freeAddress(t)
	m.start()
	runtest.Eventually(t, "the agent serves its metrics", func() bool { return len(m.scrape()) > 0 })
	httpservertest.Connections(t, func() (net.Conn, error) {
		return new(net.Dialer).DialContext(t.Context(), "tcp", m.Options.HealthAddress)
	})
}

// The metrics follow an agent from before its registration to a notice.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := startWithFiles(t, someFiles, "1")
	m := newMachine(t, s)
	m.Options.ReportInterval = time.Hour
	m.Options.HealthAddress = freeAddress(t)
	notices := make(chan struct{})
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-notices:
			_, _ = io.WriteString(w, `{"action": "terminate", "time": "2030-01-02T03:04:05Z"}`)
		default:
			if r.Method == http.MethodGet {
				http.NotFound(w, r)
			}
		}
	}))
	t.Cleanup(metadata.Close)
	m.Options.Provider, m.Options.MetadataURL, m.Options.SpotPollInterval = "aws", metadata.URL, 10*time.Millisecond
	registration := m.Options.RegistrationAddress
	m.Options.RegistrationAddress = freeAddress(t)
	m.start()
	runtest.Eventually(t, "the agent serves its metrics", func() bool { return len(m.scrape()) > 0 })
	metrics := m.scrape()
	for _, name := range []string{"nstance_agent_registered", "nstance_agent_reports_total", "nstance_agent_last_report_timestamp_seconds",
		"nstance_agent_termination_notice", `nstance_agent_patches_total{outcome="applied"}`, `nstance_agent_patches_total{outcome="failed"}`} {
		value, found := metrics[name]
		assert.True(t, found, name)
		assert.Zero(t, value, name)
	}
	assert.NotContains(t, metrics, "nstance_agent_certificate_expiration_timestamp_seconds")

	m.stop()
	m.Options.RegistrationAddress = registration
	begin := time.Now()
	m.start()
	// The nonce contains the hash of the configuration, and the hash of the patch a digest of its
	// secrets too.
	runtest.Eventually(t, "a patch is applied and reported", func() bool {
		metrics = m.scrape()
		return metrics[`nstance_agent_patches_total{outcome="applied"}`] == 1 && metrics["nstance_agent_reports_total"] == 2
	})
	assert.EqualValues(t, 1, metrics["nstance_agent_registered"])
	assert.GreaterOrEqual(t, metrics["nstance_agent_last_report_timestamp_seconds"], float64(begin.Unix()))
	block, _ := pem.Decode(m.read("identity/identity.crt"))
	certificate, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	assert.EqualValues(t, certificate.NotAfter.Unix(), metrics["nstance_agent_certificate_expiration_timestamp_seconds"])
	assert.Zero(t, metrics["nstance_agent_termination_notice"])

	setValue(s, someFiles, "no JSON")
	runtest.Eventually(t, "a refused patch is counted and reported", func() bool {
		metrics := m.scrape()
		return metrics[`nstance_agent_patches_total{outcome="failed"}`] == 1 && metrics["nstance_agent_reports_total"] == 3
	})
	// The server replaces the instance.
	close(notices)
	runtest.Eventually(t, "the notice is counted and reported", func() bool {
		metrics := m.scrape()
		return metrics["nstance_agent_termination_notice"] == 1 && metrics["nstance_agent_reports_total"] == 4
	})
}
