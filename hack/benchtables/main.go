// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command benchtables writes docs/benchmarks.md from its template and from the results
// of the last benchmarks, which are in the Go benchmark format in results.txt.
//
// With -record it replaces results instead: it reads the output of go test -v -bench
// from standard input, passes it on, and stores the results with the commit and the
// machine. Results of benchmarks that did not run stay.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// Files of the repository, in whose root the command runs.
const (
	templateFile = "hack/benchtables/benchmarks.md.tmpl"
	resultsFile  = "hack/benchtables/results.txt"
	documentFile = "docs/benchmarks.md"
)

func main() {
	recording := flag.Bool("record", false, "store the results that are read from standard input")
	flag.Parse()
	run := render
	if *recording {
		run = record
	}
	if err := run(); err != nil {
		log.Fatalf("benchtables: %v", err)
	}
}

// record replaces the stored results of the benchmarks in standard input.
func record() error {
	commit, err := commit()
	if err != nil {
		return err
	}
	measured, err := readOutput(os.Stdin, os.Stdout, commit)
	// If a benchmark failed, the other results are still stored.
	failed := err
	if len(measured) == 0 {
		return failed
	}
	stored, err := readResults()
	if err != nil {
		return err
	}
	var text strings.Builder
	write(&text, merge(stored, measured))
	if err := os.WriteFile(resultsFile, []byte(text.String()), 0o644); err != nil {
		return err
	}
	return failed
}

// render writes the document.
func render() error {
	stored, err := readResults()
	if err != nil {
		return err
	}
	template, err := os.ReadFile(templateFile)
	if err != nil {
		return err
	}
	text, err := execute(string(template), stored)
	if err != nil {
		return fmt.Errorf("write %s: %w", documentFile, err)
	}
	return os.WriteFile(documentFile, []byte(text), 0o644)
}

func readResults() ([]result, error) {
	file, err := os.Open(resultsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	stored, err := parse(file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", resultsFile, err)
	}
	return stored, nil
}

// commit returns the checked out commit, and whether files differ from it, except the files
// that this command writes.
func commit() (string, error) {
	head, err := git("rev-parse", "--short", "HEAD")
	if err != nil {
		return "", err
	}
	changes, err := git("status", "--porcelain", "--", ".", ":!"+resultsFile, ":!"+documentFile)
	if err != nil {
		return "", err
	}
	if changes != "" {
		head += " + uncommitted changes"
	}
	return head, nil
}

func git(arguments ...string) (string, error) {
	command := exec.Command("git", arguments...)
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", arguments[0], err)
	}
	return strings.TrimSpace(string(output)), nil
}

// machine describes this machine.
func machine(cpu string) string {
	text := fmt.Sprintf("%s, %d CPUs", cpu, runtime.NumCPU())
	if gibibytes := memory(); gibibytes > 0 {
		text += fmt.Sprintf(", %.0f GiB", gibibytes)
	}
	return text
}

// memory returns the memory of the machine in GiB, and zero when it is unknown.
func memory() float64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kibibytes float64
	if _, err := fmt.Sscanf(string(data), "MemTotal: %f kB", &kibibytes); err != nil {
		return 0
	}
	return math.Round(kibibytes / (1 << 20))
}
