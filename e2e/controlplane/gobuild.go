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

	"golang.org/x/mod/modfile"

	"nstance.dev/operator/e2e/gobuild"
)

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

// module is what go mod download reports about a module.
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
