// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command vulnerabilities reads what govulncheck -format json prints about a binary, and prints
// each vulnerability whose code the binary has in one line. It exits with status 1 if there is one
// in a module that is not accepted. Vulnerabilities of the standard library are a warning: only
// another release of Go fixes them, which the machine may not have.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// standardLibrary is the module of the standard library in the output of govulncheck.
const standardLibrary = "stdlib"

// message is an element of the output
// (https://pkg.go.dev/golang.org/x/vuln/internal/govulncheck#Message).
type message struct {
	OSV *struct {
		ID, Summary string
	}
	Finding *struct {
		OSV          string
		FixedVersion string `json:"fixed_version"`
		// Trace begins with the vulnerable code. Its function is empty if only the module or
		// the package is in the binary.
		Trace []struct{ Module, Version, Function string }
	}
}

// vulnerability is a vulnerability whose code is in the binary.
type vulnerability struct {
	id, module, version, fixed, summary string
}

func (v vulnerability) String() string {
	return fmt.Sprintf("%s in %s@%s, fixed in %s: %s", v.id, v.module, v.version, cmp.Or(v.fixed, "no version"), v.summary)
}

func main() {
	binary := flag.String("binary", "", "name of the binary, for the output")
	acceptedFile := flag.String("accepted", "", "file with the ids that are accepted, each with its reason")
	flag.Parse()
	if err := run(os.Stdin, os.Stdout, *binary, *acceptedFile); err != nil {
		fmt.Fprintf(os.Stderr, "vulnerabilities: %s: %v\n", *binary, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer, binary, acceptedFile string) error {
	reasons := map[string]string{}
	if acceptedFile != "" {
		file, err := os.Open(acceptedFile)
		if err != nil {
			return fmt.Errorf("-accepted: %w", err)
		}
		defer file.Close()
		if reasons, err = readAccepted(file); err != nil {
			return fmt.Errorf("-accepted: %s: %w", acceptedFile, err)
		}
	}
	found, err := read(in)
	if err != nil {
		return err
	}
	var failed, library []string
	newest := ""
	for _, v := range found {
		switch reason, ok := reasons[v.id]; {
		case ok:
			fmt.Fprintf(out, "%s: accepted: %v (%s)\n", binary, v, reason)
		case v.module == standardLibrary:
			library = append(library, v.id)
			if semver.Compare(v.fixed, newest) > 0 {
				newest = v.fixed
			}
		default:
			fmt.Fprintf(out, "%s: %v\n", binary, v)
			failed = append(failed, v.id)
		}
	}
	if len(library) > 0 {
		fmt.Fprintf(out, "%s: WARNING: the standard library that it was built with has %d known vulnerabilities, build releases with Go %s or later: %s\n",
			binary, len(library), cmp.Or(strings.TrimPrefix(newest, "v"), "without them"), strings.Join(library, ", "))
	}
	fmt.Fprintf(out, "%s: %d known vulnerabilities\n", binary, len(found))
	if len(failed) > 0 {
		return fmt.Errorf("update the modules, or accept with a reason what does not concern the binary: %s", strings.Join(failed, ", "))
	}
	return nil
}

// read returns the vulnerabilities whose code is in the binary, once each, sorted.
func read(in io.Reader) ([]vulnerability, error) {
	summaries, found := map[string]string{}, map[string]vulnerability{}
	complete := false
	decoder := json.NewDecoder(in)
	for {
		var m message
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the output of govulncheck: %w", err)
		}
		complete = true
		if m.OSV != nil {
			summaries[m.OSV.ID] = m.OSV.Summary
		}
		if f := m.Finding; f != nil && len(f.Trace) > 0 && f.Trace[0].Function != "" {
			at := f.Trace[0]
			found[f.OSV+at.Module] = vulnerability{id: f.OSV, module: at.Module, version: at.Version, fixed: f.FixedVersion}
		}
	}
	if !complete {
		return nil, errors.New("govulncheck has printed nothing")
	}
	sorted := slices.SortedFunc(maps.Values(found), func(a, b vulnerability) int {
		return cmp.Or(strings.Compare(a.module, b.module), strings.Compare(a.id, b.id))
	})
	for n := range sorted {
		sorted[n].summary = cmp.Or(summaries[sorted[n].id], "no summary")
	}
	return sorted, nil
}

// readAccepted reads lines with an id and the reason why it is accepted. Empty lines and lines that
// begin with # have no id.
func readAccepted(in io.Reader) (map[string]string, error) {
	reasons := map[string]string{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, reason, found := strings.Cut(line, " ")
		if !found || !strings.HasPrefix(id, "GO-") {
			return nil, fmt.Errorf("line %q: must be an id like GO-2026-0001 and a reason", line)
		}
		reasons[id] = strings.TrimSpace(reason)
	}
	return reasons, lines.Err()
}
