// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

// execute returns the document. Its template has two functions of our own, which name
// benchmarks without "Benchmark":
//
//	{{value "Latency" "operator-ms"}}  the median of a metric
//	{{measured "Latency" "Memory"}}    a sentence with the commit and the machine
//
// The error names every benchmark and metric that the results do not have.
func execute(text string, results []result) (string, error) {
	r := &renderer{results: results}
	document, err := template.New(documentFile).
		Funcs(template.FuncMap{"value": r.value, "measured": r.measured}).Parse(text)
	if err != nil {
		return "", err
	}
	var written strings.Builder
	if err := document.Execute(&written, nil); err != nil {
		return "", err
	}
	return written.String(), errors.Join(r.missing...)
}

type renderer struct {
	results []result
	missing []error
}

func (r *renderer) value(benchmark, unit string) string {
	var values []float64
	for _, run := range r.results {
		if value, found := run.metrics[unit]; found && run.name == "Benchmark"+benchmark {
			values = append(values, value)
		}
	}
	if len(values) == 0 {
		r.missing = append(r.missing, fmt.Errorf("no result of Benchmark%s has metric %s", benchmark, unit))
		return ""
	}
	return format(median(values))
}

// measured includes the sub-benchmarks.
func (r *renderer) measured(benchmarks ...string) string {
	var places []string
	for _, benchmark := range benchmarks {
		found := false
		for _, run := range r.results {
			if name, _, _ := strings.Cut(run.name, "/"); name != "Benchmark"+benchmark {
				continue
			}
			found = true
			if place := fmt.Sprintf("at commit %s on a machine with %s", run.commit, run.machine); !slices.Contains(places, place) {
				places = append(places, place)
			}
		}
		if !found {
			r.missing = append(r.missing, fmt.Errorf("no result of Benchmark%s", benchmark))
		}
	}
	return "Measured " + strings.Join(places, ", and ") + "."
}

func median(values []float64) float64 {
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 0 {
		return (values[middle-1] + values[middle]) / 2
	}
	return values[middle]
}

// format returns a number with three significant digits, or all digits before the point.
func format(value float64) string {
	if value == 0 {
		return "0"
	}
	decimals := max(0, 2-int(math.Floor(math.Log10(math.Abs(value)))))
	text := strconv.FormatFloat(value, 'f', decimals, 64)
	if decimals > 0 {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}
