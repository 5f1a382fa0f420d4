// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package metricstest reads metrics in tests.
package metricstest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

// Series returns every series as name{label="value",...} value, sorted. The value of a
// histogram is its number of observations.
func Series(t testing.TB, registry prometheus.Gatherer) []string {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	var all []string
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			value := metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			all = append(all, fmt.Sprintf("%s%s %g", family.GetName(), labels(metric), value))
		}
	}
	slices.Sort(all)
	return all
}

func labels(metric *dto.Metric) string {
	if len(metric.GetLabel()) == 0 {
		return ""
	}
	pairs := make([]string, 0, len(metric.GetLabel()))
	for _, label := range metric.GetLabel() {
		pairs = append(pairs, fmt.Sprintf("%s=%q", label.GetName(), label.GetValue()))
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

// SeriesOf is Series of one collector.
func SeriesOf(t testing.TB, collector prometheus.Collector) []string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(collector))
	return Series(t, registry)
}
