// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/collectors/version"

	"nstance.dev/operator/pkg/server/internal/loadbalancers"
	"nstance.dev/operator/pkg/server/internal/reconciler"
)

// registerMetrics registers the metrics that outlive a term, except the metrics of calls.
func (sh *shared) registerMetrics() {
	sh.registry.MustRegister(version.NewCollector("nstance_server"), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), sh.newRejectedMetric(), sh.newLeaderMetric(),
		sh.newCertificateMetric(), sh.newConfigMetric())
	sh.reconcilerMetrics = reconciler.NewMetrics(sh.registry)
	sh.balancerMetrics = loadbalancers.NewMetrics(sh.registry)
}

// newLeaderMetric returns a metric that is 1 while this server leads the shard.
func (sh *shared) newLeaderMetric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nstance_server_leader",
		Help: "1 while this server leads its shard, otherwise 0.",
	}, func() float64 {
		if sh.elector.Leading() {
			return 1
		}
		return 0
	})
}

// newCertificateMetric returns a metric with the time at which the certificate that clients
// see expires.
func (sh *shared) newCertificateMetric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nstance_server_certificate_expiration_timestamp_seconds",
		Help: "When the certificate of this server expires, in seconds since 1970; 0 while it has none.",
	}, func() float64 {
		certificate := sh.certificate.Load()
		if certificate == nil {
			return 0
		}
		expires, err := certificate.Expires()
		if err != nil {
			return 0 // a handshake fails too, and its error is the client's
		}
		return float64(expires.Unix())
	})
}

// newConfigMetric returns a metric that is the time at which the configuration in force was
// written.
func (sh *shared) newConfigMetric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nstance_server_config_modified_timestamp_seconds",
		Help: "When the configuration in force was written, in seconds since 1970, or 0 if the storage does not say.",
	}, func() float64 {
		modified := sh.inForce.Load().Source.LastModified
		if modified.IsZero() {
			return 0
		}
		return float64(modified.Unix())
	})
}
