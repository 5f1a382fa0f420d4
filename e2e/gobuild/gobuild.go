// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package gobuild runs go build, and says how long it still takes. It imports the standard
// library alone, because it is compiled before anything else.
package gobuild

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// progressInterval is how often a running build reports its progress.
const progressInterval = 10 * time.Second

// Build is one go build of main packages, which share most of their packages. A program is linked
// while other packages compile.
type Build struct {
	Name     string   // of what is built
	Dir      string   // of the module
	Output   string   // the program, or a folder if it ends in a slash
	Flags    []string // more flags of go build
	Packages []string
}

// Run builds, and writes to progress now and then how long that and the builds that follow
// still take.
func (b Build) Run(ctx context.Context, progress io.Writer, following ...Build) error {
	begin := time.Now()
	e := estimate{started: make(chan struct{})}
	ctx, cancel := context.WithCancel(ctx)
	listed := make(chan struct{})
	go func() {
		defer close(listed)
		select {
		case <-e.started: // often there is nothing to compile
			e.expect(uncompiled(ctx, append([]Build{b}, following...)))
		case <-ctx.Done():
		}
	}()
	defer func() { cancel(); <-listed }()

	cmd := Command(ctx, b.Dir, append([]string{"build", "-v", "-o", b.Output}, b.arguments()...)...)
	cmd.Env = append(cmd.Env, compilerEnvironment()...)
	cmd.Stdout, cmd.Stderr = &e, &e
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case err := <-exited:
			if err != nil {
				return fmt.Errorf("build %s: %w\n%s", b.Name, err, e.rest.Bytes())
			}
			fmt.Fprintf(progress, "built %s: %d packages in %s\n", b.Name, len(e.compiled), time.Since(begin).Round(time.Second/10))
			return nil
		case now := <-tick.C:
			fmt.Fprintf(progress, "building %s: %s\n", b.Name, e.left(now))
		}
	}
}

// arguments returns the arguments that go build and go list have in common.
func (b Build) arguments() []string {
	// The version control stamp would make every commit a reason to link again. Only debuggers
	// need DWARF, which is a tenth of the compiler's work. With one compiler more than processors,
	// a processor works while another compiler waits for the disk.
	arguments := []string{"-buildvcs=false", "-gcflags=all=-dwarf=false", "-p", strconv.Itoa(runtime.NumCPU() + 1)}
	return append(append(arguments, b.Flags...), b.Packages...)
}

// importCost is the cost of an import for the compiler, in bytes of source.
const importCost = 10 << 10

// uncompiled returns the cost of each package that is not compiled yet, in bytes of source. It
// returns nil after an error, because the build then reports the same error. The programs
// themselves are left out, because a compiled program counts as stale until it is linked.
func uncompiled(ctx context.Context, builds []Build) map[string]int64 {
	const format = `{{if and .Stale (ne .Name "main")}}{{.ImportPath}}{{"\t"}}{{len .Imports}}{{range .GoFiles}}{{"\t"}}{{$.Dir}}/{{.}}{{end}}{{end}}`
	costs := map[string]int64{}
	for _, b := range builds {
		output, err := Command(ctx, b.Dir, append([]string{"list", "-deps", "-f", format}, b.arguments()...)...).Output()
		if err != nil {
			return nil
		}
		for line := range strings.Lines(string(output)) {
			fields := strings.Split(strings.TrimSpace(line), "\t")
			imports, _ := strconv.ParseInt(fields[1], 10, 64)
			costs[fields[0]] = imports * importCost
			for _, file := range fields[2:] {
				if info, err := os.Stat(file); err == nil {
					costs[fields[0]] += info.Size()
				}
			}
		}
	}
	return costs
}

// Command is a go command in a folder.
func Command(ctx context.Context, dir string, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", arguments...)
	cmd.Dir = dir
	// A workspace above the repository must not change what is built.
	// Without cgo no C compiler is needed, and links take half the time (see Makefile).
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	return cmd
}

// compilerEnvironment turns garbage collection in the compiler off as long as it uses less than
// its share of half the machine's memory: collecting takes a fifth of a build from scratch. On a
// machine with few processors each compiler uses a single processor, which saves a twelfth of
// their time: the packages that compile at once use them all.
func compilerEnvironment() []string {
	const leastShare, fewProcessors = 2 << 30, 4
	var info syscall.Sysinfo_t
	if os.Getenv("GOGC") != "" || syscall.Sysinfo(&info) != nil {
		return nil
	}
	share := info.Totalram * uint64(info.Unit) / 2 / uint64(runtime.NumCPU())
	if share < leastShare {
		return nil
	}
	environment := []string{"GOGC=off", fmt.Sprintf("GOMEMLIMIT=%d", share)}
	if runtime.NumCPU() <= fewProcessors {
		environment = append(environment, "GOMAXPROCS=1")
	}
	return environment
}

// named matches a line of go build -v.
var named = regexp.MustCompile(`^[\w.~/-]+$`)

// estimate reads the output of go build -v, and estimates how long the build still takes: the
// remaining packages take as long as the compiled packages in relation to their cost.
type estimate struct {
	mu       sync.Mutex
	line     []byte          // incomplete
	rest     bytes.Buffer    // the end of what names no package
	started  chan struct{}   // closed when the first package compiles, if not nil
	begin    time.Time       // of the first package
	compiled map[string]bool // and those that compile now
	costs    map[string]int64
}

// expect sets the cost of each package that had to be compiled.
func (e *estimate) expect(costs map[string]int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.costs = costs
}

// Write parses output of go build.
func (e *estimate) Write(data []byte) (int, error) {
	const maxRest = 64 << 10
	e.mu.Lock()
	defer e.mu.Unlock()
	e.line = append(e.line, data...)
	for {
		line, rest, ended := bytes.Cut(e.line, []byte("\n"))
		switch {
		case !ended:
			return len(data), nil
		case !named.Match(line):
			e.rest.Write(e.line[:len(line)+1])
			e.rest.Next(max(0, e.rest.Len()-maxRest))
		case e.compiled == nil:
			e.begin, e.compiled = time.Now(), map[string]bool{string(line): true}
			if e.started != nil {
				close(e.started)
			}
		default:
			e.compiled[string(line)] = true
		}
		e.line = rest
	}
}

// left says how long the build still takes.
func (e *estimate) left(now time.Time) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var total, done int64
	for path, cost := range e.costs {
		total += cost
		if e.compiled[path] {
			done += cost
		}
	}
	elapsed := now.Sub(e.begin)
	switch {
	case e.compiled == nil && bytes.Contains(e.rest.Bytes(), []byte("go: downloading ")):
		return "downloading modules"
	case e.costs != nil && done == total:
		return "linking"
	case done == 0 || elapsed < progressInterval:
		return fmt.Sprintf("package %d", len(e.compiled)) // no estimate yet
	}
	left := time.Duration(float64(elapsed) * float64(total-done) / float64(done)).Round(time.Minute)
	switch left.Minutes() {
	case 0:
		return "less than a minute left"
	case 1:
		return "about a minute left"
	}
	return fmt.Sprintf("about %.0f minutes left", left.Minutes())
}
