// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package metricstest reads metrics in tests.
package metricstest

import (
	"fmt"
	"os"
	"regexp"
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

// SeriesOf returns Series of a single collector.
func SeriesOf(t testing.TB, collector prometheus.Collector) []string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(collector))
	return Series(t, registry)
}

var (
	quoted    = regexp.MustCompile("`([a-z][a-z0-9_]*[*]?)`")
	fqName    = regexp.MustCompile(`fqName: "([^"]+)"`)
	nextTitle = regexp.MustCompile(`(?m)^## `)
)

// Documented returns the metrics that the tables of the section "Metrics" of a document
// name in their first column, sorted.
func Documented(t testing.TB, path string) []string {
	t.Helper()
	var names []string
	for line := range strings.SplitSeq(Section(t, path, "Metrics"), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, match := range quoted.FindAllStringSubmatch(cells[1], -1) {
			names = append(names, match[1])
		}
	}
	slices.Sort(names)
	require.NotEmpty(t, names, "metrics in %s", path)
	return names
}

// Section returns a section of a document, from its title to the next one of level 2.
func Section(t testing.TB, path, title string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	_, text, found := strings.Cut(string(data), "\n## "+title+"\n")
	require.True(t, found, "section %s of %s", title, path)
	if end := nextTitle.FindStringIndex(text); end != nil {
		text = text[:end[0]]
	}
	return text
}

// Described returns the names of the metrics of collectors that begin with one of the
// prefixes, sorted, whether or not they have series.
func Described(prefixes []string, collectors ...prometheus.Collector) []string {
	var names []string
	for _, collector := range collectors {
		descriptions := make(chan *prometheus.Desc)
		go func() {
			collector.Describe(descriptions)
			close(descriptions)
		}()
		for description := range descriptions {
			name := fqName.FindStringSubmatch(description.String())[1]
			if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
