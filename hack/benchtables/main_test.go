// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The output of two runs is stored as results, from which the document is written.
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
	_, err := execute(`{{measured "A" "B"}} {{value "A" "b-ms"}} {{value "B/n=1" "a-ms"}} {{value "A" "a-ms"}} {{spread "A" "c-ms"}}`, results)
	const want = "no result of BenchmarkB\nno result of BenchmarkA has metric b-ms\nno result of BenchmarkB/n=1 has metric a-ms\nno result of BenchmarkA has metric c-ms"
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

const root = "../.."

// Each metric in the document is reported by the benchmark that it names.
func TestBenchmarksReportWhatTheDocumentHas(t *testing.T) {
	template := read(t, root, templateFile)
	benchmarks := findBenchmarks(t)
	placeholders := regexp.MustCompile(`{{(?:value|spread) "(\w+)[^"]*" "([^"]+)"}}`).FindAllStringSubmatch(template, -1)
	if all := strings.Count(template, "{{value") + strings.Count(template, "{{spread"); len(placeholders) != all || all == 0 {
		t.Errorf("%d of %d placeholders were read", len(placeholders), all)
	}
	for _, p := range placeholders {
		benchmark, unit := "Benchmark"+p[1], p[2]
		switch units, found := benchmarks[benchmark]; {
		case !found:
			t.Errorf("%s: there is no %s", p[0], benchmark)
		case !units[unit]:
			t.Errorf("%s: the package of %s does not report %s", p[0], benchmark, unit)
		}
	}
	for _, r := range storedResults(t) {
		name, _, _ := strings.Cut(r.name, "/")
		if _, found := benchmarks[name]; !found {
			t.Errorf("%s has a result of %s, which does not exist", resultsFile, name)
		}
	}
}

// No table has a figure that was written by hand. Targets, and what the first column
// says was measured, are not figures.
func TestTablesHaveOnlyMeasuredFigures(t *testing.T) {
	written := regexp.MustCompile(`{{.*?}}|\(target: .*?\)|at most \d+(?:\.\d+)?|99 %|\d+ instances `)
	for n, line := range strings.Split(read(t, root, templateFile), "\n") {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		for i, cell := range strings.Split(line, "|") {
			if i > 1 && strings.ContainsAny(written.ReplaceAllString(cell, ""), "0123456789") {
				t.Errorf("%s:%d: %q is no metric", templateFile, n+1, strings.TrimSpace(cell))
			}
		}
	}
}

// The committed document matches the stored results.
func TestDocumentIsUpToDate(t *testing.T) {
	document, err := execute(read(t, root, templateFile), storedResults(t))
	require.NoError(t, err)
	if document != read(t, root, documentFile) {
		t.Errorf("%s is out of date, run: make generate", documentFile)
	}
}

func storedResults(t *testing.T) []result {
	t.Helper()
	stored, err := parse(strings.NewReader(read(t, root, resultsFile)))
	require.NoError(t, err)
	return stored
}

// findBenchmarks returns the names of all benchmarks with the units that their packages
// report.
func findBenchmarks(t *testing.T) map[string]map[string]bool {
	t.Helper()
	benchmarks := map[string]map[string]bool{}
	units := map[string]map[string]bool{}
	for _, tree := range []string{"pkg", "e2e"} {
		err := filepath.WalkDir(filepath.Join(root, tree), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Name() == ".cache" {
				return fs.SkipDir // which may have the source of a previous version
			}
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			folder := filepath.Dir(path)
			if units[folder] == nil {
				units[folder] = map[string]bool{"ns/op": true}
			}
			ast.Inspect(file, func(node ast.Node) bool {
				switch n := node.(type) {
				case *ast.FuncDecl:
					if name := n.Name.Name; n.Recv == nil && strings.HasPrefix(name, "Benchmark") {
						if benchmarks[name] != nil {
							t.Errorf("there are two %s", name)
						}
						benchmarks[name] = units[folder]
					}
				case *ast.CallExpr:
					if unit, found := reportedUnit(n); found {
						units[folder][unit] = true
					}
				}
				return true
			})
			return nil
		})
		require.NoError(t, err)
	}
	return benchmarks
}

// reportedUnit returns the unit of a call of ReportMetric.
func reportedUnit(call *ast.CallExpr) (unit string, found bool) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || method.Sel.Name != "ReportMetric" || len(call.Args) != 2 {
		return "", false
	}
	literal, ok := call.Args[1].(*ast.BasicLit)
	if !ok {
		return "", false
	}
	unit, err := strconv.Unquote(literal.Value)
	return unit, err == nil
}
