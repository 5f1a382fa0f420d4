// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/sys/unix"
)

// progressInterval is how often a running build reports its progress.
const progressInterval = 5 * time.Second

// program is a main package and the name of its binary.
type program struct {
	name      string
	source    string            // import path
	variables map[string]string // set by the linker
}

// linkerFlags strip what only debuggers need. The flags are for this program alone.
func (p program) linkerFlags() string {
	flags := []string{"-s", "-w"}
	for _, name := range slices.Sorted(maps.Keys(p.variables)) {
		flags = append(flags, "-X", name+"="+p.variables[name])
	}
	return "-ldflags=" + p.source + "=" + strings.Join(flags, " ")
}

// versionVariables are the version of Kubernetes in the programs. Built without them
// the API server reports version 0.0.0, and Cluster API refuses to work with it.
func versionVariables(version string) map[string]string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	return map[string]string{
		"k8s.io/component-base/version.gitVersion": version,
		"k8s.io/component-base/version.gitMajor":   parts[0],
		"k8s.io/component-base/version.gitMinor":   parts[1],
		"k8s.io/client-go/pkg/version.gitVersion":  version,
	}
}

// build builds programs of the module in dir into the cache, with one go build: the
// programs share most of their packages, and one is linked while others compile. Of
// the packages, total are not compiled yet; 0 means that the number is unknown.
func (b Builder) build(ctx context.Context, dir string, total int, programs ...program) error {
	what := namesOf(programs)
	compiled := packageCounter{pattern: regexp.MustCompile(`^[\w.~/-]+$`)}
	begin := time.Now()
	cmd := goCommand(ctx, dir, append([]string{"build", "-v"}, b.buildArguments(programs)...)...)
	cmd.Env = append(cmd.Env, compilerEnvironment()...)
	err := b.runWithProgress(cmd, &compiled, func() string {
		switch n := compiled.count(); {
		case total == 0:
			return fmt.Sprintf("building %s: package %d", what, n)
		case n < total:
			return fmt.Sprintf("building %s: package %d of %d", what, n, total)
		default:
			return "linking " + what
		}
	})
	if err != nil {
		return fmt.Errorf("build %s: %w\n%s", what, err, compiled.rest.Bytes())
	}
	for _, p := range programs {
		if base := path.Base(p.source); base != p.name {
			if err := os.Rename(filepath.Join(b.cache(), base), filepath.Join(b.cache(), p.name)); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(b.Progress, "built %s: %d packages in %s\n", what, compiled.count(), time.Since(begin).Round(time.Second/10))
	return nil
}

// outdated returns how many packages build would compile. It downloads the modules
// that are missing.
func (b Builder) outdated(ctx context.Context, dir string, programs ...program) (int, error) {
	what := namesOf(programs)
	// A dry run prints the commands, under a comment with the path of the package.
	printed := packageCounter{pattern: regexp.MustCompile(`^# [\w.~/-]+$`)}
	cmd := goCommand(ctx, dir, append([]string{"build", "-n"}, b.buildArguments(programs)...)...)
	err := b.runWithProgress(cmd, &printed, func() string { return "finding the packages of " + what })
	if err != nil {
		return 0, fmt.Errorf("find the packages of %s: %w\n%s", what, err, printed.rest.Bytes())
	}
	return printed.count(), nil
}

func (b Builder) buildArguments(programs []program) []string {
	// The version control stamp would make every commit a reason to link again. Only
	// debuggers need DWARF, which is a tenth of the compiler's work. One compiler more
	// than processors uses the time in which another one waits for the disk.
	arguments := []string{"-buildvcs=false", "-gcflags=all=-dwarf=false", "-p", strconv.Itoa(runtime.NumCPU() + 1),
		"-o", b.cache() + string(filepath.Separator)}
	arguments = append(arguments, b.flags...)
	for _, p := range programs {
		arguments = append(arguments, p.linkerFlags())
	}
	for _, p := range programs {
		arguments = append(arguments, p.source)
	}
	return arguments
}

func namesOf(programs []program) string {
	var names []string
	for _, p := range programs {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}

// packageCounter counts the packages that a go command names in a line of their own.
// The end of all other output is in rest.
type packageCounter struct {
	pattern *regexp.Regexp
	mu      sync.Mutex
	line    []byte // incomplete
	found   map[string]bool
	rest    bytes.Buffer
}

func (c *packageCounter) Write(data []byte) (int, error) {
	const maxRest = 64 << 10
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found == nil {
		c.found = map[string]bool{}
	}
	c.line = append(c.line, data...)
	for {
		line, rest, complete := bytes.Cut(c.line, []byte("\n"))
		switch {
		case !complete:
			return len(data), nil
		case c.pattern.Match(line):
			c.found[string(line)] = true
		default:
			c.rest.Write(c.line[:len(line)+1])
			c.rest.Next(max(0, c.rest.Len()-maxRest))
		}
		c.line = rest
	}
}

func (c *packageCounter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.found)
}

// runWithProgress runs a command, and reports now and then how far it is.
func (b Builder) runWithProgress(cmd *exec.Cmd, output io.Writer, progress func() string) error {
	cmd.Stdout, cmd.Stderr = output, output
	begin := time.Now()
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
			return err
		case <-tick.C:
			fmt.Fprintf(b.Progress, "%s, %s\n", progress(), time.Since(begin).Round(time.Second))
		}
	}
}

// compilerEnvironment turns garbage collection in the compiler off as long as it uses
// less than its share of half the machine's memory: collecting takes a fifth of a
// build from scratch.
func compilerEnvironment() []string {
	const leastShare = 2 << 30
	var info unix.Sysinfo_t
	if os.Getenv("GOGC") != "" || unix.Sysinfo(&info) != nil {
		return nil
	}
	share := info.Totalram * uint64(info.Unit) / 2 / uint64(runtime.NumCPU())
	if share < leastShare {
		return nil
	}
	return []string{"GOGC=off", fmt.Sprintf("GOMEMLIMIT=%d", share)}
}

// module is what go mod download reports about a module.
type module struct {
	Path    string
	Version string
	Dir     string
	Error   string
}

// download downloads modules at the versions of kubeModule and returns where they are.
func (b Builder) download(ctx context.Context, paths ...string) (map[string]module, error) {
	cmd := goCommand(ctx, b.kubeModule(), append([]string{"mod", "download", "-json"}, paths...)...)
	output, err := cmd.Output()
	modules := map[string]module{}
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var m module
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the output of go mod download: %w", err)
		}
		if m.Error != "" {
			return nil, fmt.Errorf("download %s: %s", m.Path, m.Error)
		}
		modules[m.Path] = m
	}
	if err != nil {
		return nil, fmt.Errorf("download %s: %w", strings.Join(paths, ", "), err)
	}
	return modules, nil
}

func goCommand(ctx context.Context, dir string, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", arguments...)
	cmd.Dir = dir
	// A workspace above the repository must not change what is built.
	// Without cgo no C compiler is needed, and links take half the time (see Makefile).
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	return cmd
}

// FindRoot returns the root of the repository that dir lies in.
func FindRoot(dir string) (string, error) {
	const root = "nstance.dev/operator"
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		data, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil && modfile.ModulePath(data) == root {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s does not lie in a checkout of %s", dir, root)
		}
	}
}
