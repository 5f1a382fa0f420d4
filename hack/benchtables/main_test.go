// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The output of two runs becomes results, and those become a document.
func TestGolden(t *testing.T) {
	var results []result
	for _, run := range []struct{ output, commit string }{{"first.txt", "1111111"}, {"second.txt", "2222222"}} {
		output := read(t, "testdata", run.output)
		var copied strings.Builder
		measured, err := readOutput(strings.NewReader(output), &copied, run.commit)
		require.NoError(t, err)
		if copied.String() != output {
			t.Errorf("%s was not copied: %q", run.output, &copied)
		}
		for i := range measured {
			// The rest is about this machine.
			measured[i].machine, _, _ = strings.Cut(measured[i].machine, ",")
		}
		results = merge(results, measured)
	}
	var stored strings.Builder
	write(&stored, results)
	expect(t, "results.golden.txt", stored.String())

	parsed, err := parse(strings.NewReader(stored.String()))
	require.NoError(t, err)
	document, err := execute(read(t, "testdata", "document.md.tmpl"), parsed)
	require.NoError(t, err)
	expect(t, "document.golden.md", document)
}

// Everything that is missing is named at once.
func TestMissingMetrics(t *testing.T) {
	results := []result{{name: "BenchmarkA", metrics: map[string]float64{"a-ms": 1}}}
	_, err := execute(`{{measured "A" "B"}} {{value "A" "b-ms"}} {{value "B/n=1" "a-ms"}} {{value "A" "a-ms"}}`, results)
	const want = "no result of BenchmarkB\nno result of BenchmarkA has metric b-ms\nno result of BenchmarkB/n=1 has metric a-ms"
	if err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
}

// A benchmark that failed has no result, and the others keep theirs.
func TestBenchmarkWithoutResult(t *testing.T) {
	const output = "BenchmarkA\nBenchmarkA-2 1 5 a-ms\nBenchmarkB\n--- FAIL: BenchmarkB-2\nBenchmarkC\nBenchmarkC/n=1\nBenchmarkC/n=1-2 1 5 c-ms\nFAIL\n"
	results, err := readOutput(strings.NewReader(output), io.Discard, "1111111")
	if err == nil || err.Error() != "benchmarks without a result: BenchmarkB" {
		t.Errorf("got error %v", err)
	}
	var names []string
	for _, r := range results {
		names = append(names, r.name)
	}
	if want := []string{"BenchmarkA", "BenchmarkC/n=1"}; !slices.Equal(names, want) {
		t.Errorf("got results of %v, want %v", names, want)
	}
}

func TestFormat(t *testing.T) {
	for value, want := range map[float64]string{
		0: "0", 0.0812: "0.0812", 0.97: "0.97", 1: "1", 1.804: "1.8", 25.16: "25.2", 110.4: "110", 5023.4: "5023",
	} {
		if got := format(value); got != want {
			t.Errorf("%v is %s, want %s", value, got, want)
		}
	}
}

func TestUnknownLineInResults(t *testing.T) {
	if _, err := parse(strings.NewReader("BenchmarkA 1 fast ms\n")); err == nil {
		t.Error("no error")
	}
}

func read(t *testing.T, elements ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(elements...))
	require.NoError(t, err)
	return string(data)
}

func expect(t *testing.T, golden, got string) {
	t.Helper()
	assert.Equal(t, read(t, "testdata", golden), got, golden)
}
