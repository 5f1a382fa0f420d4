// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package metricstest

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

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
