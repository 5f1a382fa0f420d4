// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// Each metric in the document is reported by the benchmark that it names.
func TestBenchmarksReportWhatTheDocumentHas(t *testing.T) {
	template := read(t, root, templateFile)
	benchmarks := findBenchmarks(t)
	placeholders := regexp.MustCompile(`{{value "(\w+)[^"]*" "([^"]+)"}}`).FindAllStringSubmatch(template, -1)
	if all := strings.Count(template, "{{value"); len(placeholders) != all || all == 0 {
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
	written := regexp.MustCompile(`{{.*?}}|\(target: .*?\)|at most \d+|99 %|\d+ instances `)
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

// The document is the one that the stored results make.
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
