// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

// result has the metrics of a run of a benchmark.
type result struct {
	// name is the name of the benchmark and its sub-benchmark, without the number of
	// processors.
	name            string
	commit, machine string
	iterations      string
	metrics         map[string]float64
}

// Keys of the configuration lines in results.txt.
const (
	commitKey  = "commit"
	machineKey = "machine"
)

var (
	processors = regexp.MustCompile(`-\d+$`)
	// announced matches the line that go test -v prints before it runs a benchmark.
	announced = regexp.MustCompile(`^Benchmark\S+$`)
)

// parseLine returns the result in a line of the Go benchmark format
// (https://go.dev/design/14313-benchmark-format), nil if the line has no result.
func parseLine(line string) *result {
	fields := strings.Fields(line)
	if len(fields) < 4 || len(fields)%2 != 0 || !strings.HasPrefix(fields[0], "Benchmark") {
		return nil
	}
	if _, err := strconv.Atoi(fields[1]); err != nil {
		return nil
	}
	r := &result{name: processors.ReplaceAllString(fields[0], ""), iterations: fields[1], metrics: map[string]float64{}}
	for pair := range slices.Chunk(fields[2:], 2) {
		value, err := strconv.ParseFloat(pair[0], 64)
		if err != nil {
			return nil
		}
		r.metrics[pair[1]] = value
	}
	return r
}

// parse reads results.txt.
func parse(stored io.Reader) ([]result, error) {
	var results []result
	var commit, machine string
	lines := bufio.NewScanner(stored)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch r := parseLine(lines.Text()); {
		case r != nil:
			r.commit, r.machine = commit, machine
			results = append(results, *r)
		case key == commitKey:
			commit = value
		case key == machineKey:
			machine = value
		default:
			return nil, fmt.Errorf("line %q is neither a result nor a commit or machine", lines.Text())
		}
	}
	return results, lines.Err()
}

// readOutput copies the output of go test -v -bench, and returns the results in it. The
// error names the benchmarks without a result.
func readOutput(output io.Reader, copied io.Writer, commit string) ([]result, error) {
	var results []result
	started := map[string]bool{}
	cpu := "unknown processor"
	lines := bufio.NewReader(output)
	for {
		line, err := lines.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return results, err
		}
		if _, err := io.WriteString(copied, line); err != nil {
			return results, err
		}
		if name := strings.TrimSpace(line); announced.MatchString(name) {
			started[name] = true
		}
		if model, found := strings.CutPrefix(line, "cpu: "); found {
			cpu = strings.TrimSpace(model)
		}
		if r := parseLine(line); r != nil {
			r.commit, r.machine = commit, machine(cpu)
			results = append(results, *r)
		}
		if err != nil {
			return results, withoutResult(started, results)
		}
	}
}

// withoutResult returns an error that names the started benchmarks that have no result,
// unless a sub-benchmark has a result.
func withoutResult(started map[string]bool, results []result) error {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(started)) {
		if !slices.ContainsFunc(results, func(r result) bool { return r.name == name || strings.HasPrefix(r.name, name+"/") }) {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		return fmt.Errorf("benchmarks without a result: %s", strings.Join(names, ", "))
	}
	return nil
}

// merge returns the results, with the results of each benchmark in measured replaced.
func merge(stored, measured []result) []result {
	merged := slices.DeleteFunc(stored, func(old result) bool {
		return slices.ContainsFunc(measured, func(r result) bool { return r.name == old.name })
	})
	merged = append(merged, measured...)
	slices.SortStableFunc(merged, func(a, b result) int { return cmp.Compare(a.name, b.name) })
	return merged
}

// write writes results.txt.
func write(text *strings.Builder, results []result) {
	var commit, machine string
	for _, r := range results {
		if r.commit != commit {
			commit = r.commit
			fmt.Fprintf(text, "%s: %s\n", commitKey, commit)
		}
		if r.machine != machine {
			machine = r.machine
			fmt.Fprintf(text, "%s: %s\n", machineKey, machine)
		}
		fmt.Fprintf(text, "%s %s", r.name, r.iterations)
		for _, unit := range slices.Sorted(maps.Keys(r.metrics)) {
			fmt.Fprintf(text, " %s %s", strconv.FormatFloat(r.metrics[unit], 'f', -1, 64), unit)
		}
		text.WriteByte('\n')
	}
}

// execute returns the document. Its template has three functions of our own, which name
// benchmarks without "Benchmark":
//
//	{{value "Latency" "operator-ms"}}   the median of a metric
//	{{spread "Latency" "operator-ms"}}  the median, and the lowest and the highest of several runs
//	{{measured "Latency" "Memory"}}     a sentence with the commit and the machine
//
// The error names every benchmark and metric that the results do not have.
func execute(text string, results []result) (string, error) {
	r := &renderer{results: results}
	document, err := template.New(documentFile).
		Funcs(template.FuncMap{"value": r.value, "spread": r.spread, "measured": r.measured}).Parse(text)
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
	values := r.values(benchmark, unit)
	if len(values) == 0 {
		return ""
	}
	return format(median(values))
}

func (r *renderer) spread(benchmark, unit string) string {
	values := r.values(benchmark, unit)
	switch len(values) {
	case 0:
		return ""
	case 1:
		return format(values[0])
	}
	return fmt.Sprintf("%s (%s to %s)", format(median(values)), format(slices.Min(values)), format(slices.Max(values)))
}

// values returns a metric of all runs of a benchmark.
func (r *renderer) values(benchmark, unit string) (values []float64) {
	for _, run := range r.results {
		if value, found := run.metrics[unit]; found && run.name == "Benchmark"+benchmark {
			values = append(values, value)
		}
	}
	if len(values) == 0 {
		r.missing = append(r.missing, fmt.Errorf("no result of Benchmark%s has metric %s", benchmark, unit))
	}
	return values
}

// measured includes the results of sub-benchmarks.
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
