// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	imports prometheus.Counter
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{imports: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "nstance_operator_imports_total",
		Help: "Pools that were created for groups that were on shards.",
	})}
	registry.MustRegister(m.imports)
	return m
}
