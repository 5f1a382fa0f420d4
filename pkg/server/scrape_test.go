// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/metricstest"
)

// A server exports nothing that is not documented. Calls, storage and groups have series
// when a group runs.
func TestServersExportDocumentedMetrics(t *testing.T) {
	s := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 1}}}`})
	watchGroups(t, s.Operator("default")).untilSize("main", 1)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.HealthAddr+"/metrics", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	require.NoError(t, err)
	foreign := regexp.MustCompile("^(go|process|promhttp)_")
	documented := metricstest.Documented(t, filepath.Join("..", "..", "docs", "server.md"))
	for name := range families {
		if !foreign.MatchString(name) {
			assert.Contains(t, documented, name)
		}
	}
	for _, name := range strings.Fields("nstance_server_streams nstance_server_storage_call_duration_seconds nstance_server_group_size") {
		assert.Contains(t, families, name)
	}
	assert.InDelta(t, 1, families["nstance_server_leader"].GetMetric()[0].GetGauge().GetValue(), 0, "the only server leads")
	assert.InDelta(t, servedCertificate(t, s).NotAfter.Unix(),
		families["nstance_server_certificate_expiration_timestamp_seconds"].GetMetric()[0].GetGauge().GetValue(), 0, "the end of its certificate")
	info, err := os.Stat(s.ConfigPath())
	require.NoError(t, err)
	assert.InDelta(t, info.ModTime().Unix(),
		families["nstance_server_config_modified_timestamp_seconds"].GetMetric()[0].GetGauge().GetValue(), 0, "the time of its configuration")
}

// servedCertificate returns the certificate that clients of the server see.
func servedCertificate(t *testing.T, s *servertest.Server) *x509.Certificate {
	t.Helper()
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: pkitest.Roots(s.Authority), ServerName: "localhost", MinVersion: tls.VersionTLS13}}
	connection, err := dialer.DialContext(t.Context(), "tcp", s.RegistrationAddr)
	require.NoError(t, err)
	defer connection.Close()
	return connection.(*tls.Conn).ConnectionState().PeerCertificates[0]
}
