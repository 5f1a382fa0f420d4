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
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"

	"nstance.dev/operator/e2e/gobuild"
	"nstance.dev/operator/e2e/inputs"
)

// The programs of the repository.
const (
	operatorProgram    = "nstance-operator"
	serverProgram      = "nstance-server"
	agentProgram       = "nstance-agent"
	adminProgram       = "nstance-admin"
	pluginProgram      = "kubectl-nstance"
	marekvsProgram     = "marekvs-operator"
	agentServerProgram = "agentserver"
)

// Products are the programs of the repository that suites of tests run.
var Products = []string{
	operatorProgram, serverProgram, agentProgram, adminProgram, pluginProgram, marekvsProgram, agentServerProgram,
}

// Product builds nstance-operator and nstance-server from the repository and
// returns their paths.
func (b Builder) Product(ctx context.Context) (operator, server string, err error) {
	paths, err := b.Programs(ctx, operatorProgram, serverProgram)
	return paths[operatorProgram], paths[serverProgram], err
}

// Server builds nstance-server and returns its path.
func (b Builder) Server(ctx context.Context) (string, error) { return b.program(ctx, serverProgram) }

// Plugin builds kubectl-nstance and returns its path.
func (b Builder) Plugin(ctx context.Context) (string, error) { return b.program(ctx, pluginProgram) }

// Admin builds nstance-admin and returns its path.
func (b Builder) Admin(ctx context.Context) (string, error) { return b.program(ctx, adminProgram) }

// Agents builds nstance-agent, and the server of shards whose machines are its processes
// (e2e/agentcloud), and returns their paths.
func (b Builder) Agents(ctx context.Context) (agent, server string, err error) {
	paths, err := b.Programs(ctx, agentProgram, agentServerProgram)
	return paths[agentProgram], paths[agentServerProgram], err
}

// Marekvs builds marekvs-operator and returns its path.
func (b Builder) Marekvs(ctx context.Context) (string, error) { return b.program(ctx, marekvsProgram) }

func (b Builder) program(ctx context.Context, name string) (string, error) {
	paths, err := b.Programs(ctx, name)
	return paths[name], err
}

// Programs builds programs of Products, unless make has built them, and returns their paths
// by name.
func (b Builder) Programs(ctx context.Context, names ...string) (map[string]string, error) {
	paths := map[string]string{}
	var missing, ofTests []program
	for _, name := range names {
		paths[name] = filepath.Join(b.cache(), name)
		built, err := b.built(name)
		switch {
		case err != nil:
			return nil, err
		case built:
		case name == agentServerProgram:
			ofTests = append(ofTests, program{name: name, source: "nstance.dev/operator/e2e/cmd/" + name})
		default:
			missing = append(missing, program{name: name, source: "nstance.dev/operator/cmd/" + name})
		}
	}
	if len(missing)+len(ofTests) == 0 {
		return paths, nil
	}
	unlock, err := b.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if len(missing) > 0 {
		err = b.build(ctx, b.Root, missing...)
	}
	if len(ofTests) > 0 {
		err = errors.Join(err, b.build(ctx, filepath.Join(b.Root, "e2e"), ofTests...))
	}
	return paths, err
}

// built reports whether make has built a program of this repository into the cache. Programs
// of other versions or with other flags are always built.
func (b Builder) built(name string) (bool, error) {
	if b.CacheDir != "" || len(b.flags) > 0 {
		return false, nil
	}
	return inputs.Built(name)
}

// DevProduct builds nstance-operator, an nstance-server without AWS, whose SDK takes longest
// to compile, and kubectl-nstance, and returns their paths. They are not the programs that
// tests run.
func (b Builder) DevProduct(ctx context.Context) (operator, server, plugin string, err error) {
	b.flags = append(b.flags, "-tags=noaws")
	b.CacheDir = filepath.Join(b.cache(), "dev")
	paths, err := b.Programs(ctx, operatorProgram, serverProgram, pluginProgram)
	return paths[operatorProgram], paths[serverProgram], paths[pluginProgram], err
}

// ClockVariable is the environment variable that sets the clock of a program that
// ProductWithClock has built: a number of seconds ahead, or behind if negative. Monotonic
// time is not affected.
const ClockVariable = "NSTANCE_E2E_CLOCK"

// Clock returns the environment of a program whose clock is ahead of the real clock.
func Clock(ahead time.Duration) []string {
	return []string{fmt.Sprintf("%s=%d", ClockVariable, int64(ahead.Seconds()))}
}

// now is the line of time.Now that reads the clock, and shift is inserted after it.
const (
	now   = "\tsec, nsec, mono := runtimeNow()\n"
	shift = "\tsec += e2eShift\n"
)

// shiftSource is added to package time. It reads the variable without package os, which
// imports package time.
const shiftSource = `package time

import "syscall"

var e2eShift = func() int64 {
	text, _ := syscall.Getenv("` + ClockVariable + `")
	behind := len(text) > 0 && text[0] == '-'
	if behind {
		text = text[1:]
	}
	var seconds int64
	for _, digit := range []byte(text) {
		if digit < '0' || digit > '9' {
			panic("` + ClockVariable + ` is not a number of seconds")
		}
		seconds = seconds*10 + int64(digit-'0')
	}
	if behind {
		return -seconds
	}
	return seconds
}()
`

// ProductWithClock is Product, with programs whose clock ClockVariable sets. A wrong clock
// of a whole process cannot be simulated from outside of it: the programs are static, and
// the kernel has one clock for all.
func (b Builder) ProductWithClock(ctx context.Context) (operator, server string, err error) {
	overlay, err := b.clockOverlay(ctx)
	if err != nil {
		return "", "", fmt.Errorf("build programs with a clock of their own: %w", err)
	}
	b.flags = append(b.flags, "-overlay="+overlay)
	b.CacheDir = filepath.Join(b.cache(), "clock")
	return b.Product(ctx)
}

// clockOverlay writes the overlay of the standard library, and returns its path.
func (b Builder) clockOverlay(ctx context.Context) (string, error) {
	output, err := gobuild.Command(ctx, b.Root, "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("find the standard library: %w", err)
	}
	folder := filepath.Join(strings.TrimSpace(string(output)), "src", "time")
	source, err := os.ReadFile(filepath.Join(folder, "time.go"))
	if err != nil {
		return "", err
	}
	if bytes.Count(source, []byte(now)) != 1 {
		return "", errors.New("time.Now of this version of Go reads the clock in another way")
	}
	dir := filepath.Join(b.cache(), "clock")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	replaced := map[string]string{
		filepath.Join(folder, "time.go"):      filepath.Join(dir, "time.go.txt"),
		filepath.Join(folder, "e2e_shift.go"): filepath.Join(dir, "e2e_shift.go.txt"),
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	for name, data := range map[string][]byte{
		filepath.Join(dir, "time.go.txt"):      bytes.Replace(source, []byte(now), []byte(now+shift), 1),
		filepath.Join(dir, "e2e_shift.go.txt"): []byte(shiftSource),
		path:                                   overlay,
	} {
		if err := replaceFile(name, data); err != nil {
			return "", err
		}
	}
	return path, nil
}

// program is a main package and the name of its binary.
type program struct {
	name      string
	source    string            // import path
	variables map[string]string // set by the linker
}

// linkerFlags returns flags that strip debug information and set variables, for this program
// alone.
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

// build builds programs of the module in dir into the cache.
func (b Builder) build(ctx context.Context, dir string, programs ...program) error {
	build := gobuild.Build{
		Name:   namesOf(programs),
		Dir:    dir,
		Output: b.cache() + string(filepath.Separator),
		Flags:  slices.Clone(b.flags),
	}
	for _, p := range programs {
		build.Flags = append(build.Flags, p.linkerFlags())
		build.Packages = append(build.Packages, p.source)
	}
	if err := build.Run(ctx, b.Progress); err != nil {
		return err
	}
	for _, p := range programs {
		if base := path.Base(p.source); base != p.name {
			if err := os.Rename(filepath.Join(b.cache(), base), filepath.Join(b.cache(), p.name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func namesOf(programs []program) string {
	var names []string
	for _, p := range programs {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}

// module is an entry of the output of go mod download -json
// (https://go.dev/ref/mod#go-mod-download).
type module struct {
	Path    string
	Version string
	Dir     string
	Error   string
}

// download downloads modules at the versions of kubeModule and returns where they are.
func (b Builder) download(ctx context.Context, paths ...string) (map[string]module, error) {
	cmd := gobuild.Command(ctx, b.kubeModule(), append([]string{"mod", "download", "-json"}, paths...)...)
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
