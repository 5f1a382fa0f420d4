// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// parts are the parts of kube (e2e/cmd/kube), the modules that they are built from, and the
// arguments with which they print their version.
var parts = []struct{ name, module, version string }{
	{"etcd", "go.etcd.io/etcd/server/v3", "--version"},
	{APIServer, kubernetesModule, "--version"},
	{ControllerManager, kubernetesModule, "--version"},
	{Scheduler, kubernetesModule, "--version"},
	{"kubectl", kubernetesModule, "version --client"},
}

// ControlPlaneAtHand is ControlPlane, but builds no kube if all its parts are in the folder
// KUBEBUILDER_ASSETS or in PATH, in the same minor versions.
func (b Builder) ControlPlaneAtHand(ctx context.Context) (Binaries, error) {
	b, err := b.withKubeAtHand(ctx)
	if err != nil {
		return Binaries{}, err
	}
	return b.ControlPlane(ctx)
}

// withKubeAtHand returns a builder that uses the parts that are at hand, or the same builder.
func (b Builder) withKubeAtHand(ctx context.Context) (Builder, error) {
	script := "#!/bin/sh\n# Runs a part like e2e/cmd/kube.\ncase ${0##*/} in kubectl) part=kubectl ;; *) part=$1; shift ;; esac\ncase $part in\n"
	var found []string
	for _, part := range parts {
		path := b.findAtHand(part.name)
		if path == "" {
			return b, nil
		}
		want, err := b.minorVersion(part.module)
		if err != nil {
			return b, err
		}
		if got := printedVersion(ctx, path, part.version); got != want {
			fmt.Fprintf(b.Progress, "not used: %s has version %q, not %s\n", path, got, want)
			return b, nil
		}
		found = append(found, path)
		script += fmt.Sprintf("%s) exec '%s' \"$@\" ;;\n", part.name, path)
	}
	fmt.Fprintf(b.Progress, "using %s\n", strings.Join(found, ", "))
	// What the tests use stays as it is.
	b.CacheDir = filepath.Join(b.cache(), "athand")
	b.kube = filepath.Join(b.CacheDir, "kube")
	if err := os.MkdirAll(b.CacheDir, 0o755); err != nil {
		return b, err
	}
	return b, os.WriteFile(b.kube, []byte(script+"esac\n"), 0o755)
}

// findAtHand returns the path of a program that is not one of ours, "" if there is none.
func (b Builder) findAtHand(name string) string {
	dirs := append(filepath.SplitList(os.Getenv("KUBEBUILDER_ASSETS")), filepath.SplitList(os.Getenv("PATH"))...)
	for _, dir := range dirs {
		path, err := filepath.Abs(filepath.Join(dir, name))
		if err != nil || b.isOurs(path) {
			continue
		}
		if path, err = exec.LookPath(path); err == nil {
			return path
		}
	}
	return ""
}

// isOurs reports whether path leads into the cache: users add .dev/bin to PATH, where kubectl is
// a link to kube.
func (b Builder) isOurs(path string) bool {
	target, err := filepath.EvalSymlinks(path)
	cache, err2 := filepath.EvalSymlinks(b.cache())
	return err == nil && err2 == nil && strings.HasPrefix(target, cache)
}

// minorVersion returns the version of a module that kube is built from, without the patch.
func (b Builder) minorVersion(module string) (string, error) {
	path := filepath.Join(b.kubeModule(), "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	file, err := modfile.Parse(path, data, nil)
	if err != nil {
		return "", err
	}
	for _, require := range file.Require {
		if require.Mod.Path == module {
			return semver.MajorMinor(require.Mod.Version), nil
		}
	}
	return "", fmt.Errorf("%s does not require %s", path, module)
}

var versionPattern = regexp.MustCompile(`\d+\.\d+\.\d+`)

// printedVersion returns the first version that a program prints, without the patch.
func printedVersion(ctx context.Context, path, arguments string) string {
	output, err := exec.CommandContext(ctx, path, strings.Fields(arguments)...).Output()
	if err != nil {
		return err.Error()
	}
	return semver.MajorMinor("v" + string(versionPattern.Find(output)))
}
