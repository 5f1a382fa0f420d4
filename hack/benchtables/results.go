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
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// result is what one run of a benchmark has measured.
type result struct {
	// name is the benchmark's, with its sub-benchmark and without the number of
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
// (https://go.dev/design/14313-benchmark-format), nil when there is none.
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
// error names the benchmarks that have none.
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

// withoutResult returns an error that names the benchmarks that were started and have no
// result, nor has a sub-benchmark of them.
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

// merge returns the results with those of each benchmark in measured replaced.
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
