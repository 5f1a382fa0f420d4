// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	expiry prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{expiry: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "nstance_operator_certificate_expiration_timestamp_seconds",
		Help: "Time at which the operator's client certificate expires, in seconds since 1970; 0 while there is none. Only the leader sets it.",
	})}
	registry.MustRegister(m.expiry)
	return m
}

func (m *metrics) observe(cert *certificate) {
	if cert == nil || cert.leaf == nil {
		m.expiry.Set(0)
		return
	}
	m.expiry.Set(float64(cert.leaf.NotAfter.Unix()))
}
