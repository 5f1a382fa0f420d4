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
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
)

// progressInterval is how often a running build says that it still runs.
const progressInterval = 5 * time.Second

// program is a main package and where its binary goes.
type program struct {
	name      string
	source    string            // import path
	target    string            // file
	variables map[string]string // set by the linker
}

// versionVariables say which Kubernetes the programs are. Built without them
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

// build runs go build in dir and reports how long it takes.
func (b Builder) build(ctx context.Context, dir string, p program) error {
	flags := []string{"-s", "-w"}
	for name, value := range p.variables {
		flags = append(flags, "-X", name+"="+value)
	}
	// The version control stamp would make every commit a reason to link again.
	cmd := goCommand(ctx, dir, "build", "-buildvcs=false",
		"-ldflags="+strings.Join(flags, " "), "-o", p.target, p.source)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := b.runWithProgress(cmd, p.name); err != nil {
		return fmt.Errorf("building %s: %w\n%s", p.name, err, output.Bytes())
	}
	return nil
}

func (b Builder) runWithProgress(cmd *exec.Cmd, name string) error {
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			if err == nil {
				fmt.Fprintf(b.Progress, "built %s in %s\n", name, time.Since(begin).Round(time.Second/10))
			}
			return err
		case <-tick.C:
			fmt.Fprintf(b.Progress, "building %s … %s\n", name, time.Since(begin).Round(time.Second))
		}
	}
}

// module is what go mod download tells of one.
type module struct {
	Path    string
	Version string
	Dir     string
	Error   string
}

// download fetches modules at the versions of kubeModule and tells where they are.
func (b Builder) download(ctx context.Context, paths ...string) (map[string]module, error) {
	cmd := goCommand(ctx, b.kubeModule(), append([]string{"mod", "download", "-json"}, paths...)...)
	output, err := cmd.Output()
	modules := map[string]module{}
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var m module
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("reading what go mod download says: %w", err)
		}
		if m.Error != "" {
			return nil, fmt.Errorf("downloading %s: %s", m.Path, m.Error)
		}
		modules[m.Path] = m
	}
	if err != nil {
		return nil, fmt.Errorf("downloading %s: %w", strings.Join(paths, ", "), err)
	}
	return modules, nil
}

func goCommand(ctx context.Context, dir string, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", arguments...)
	cmd.Dir = dir
	// A workspace above the repository must not change what is built.
	cmd.Env = append(os.Environ(), "GOWORK=off")
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
