// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
	"golang.org/x/sys/unix"
)

// Modules whose programs or files the control plane uses, in the versions of e2e/cmd/kube/go.mod.
const (
	kubernetesModule = "k8s.io/kubernetes"
	capiModule       = "sigs.k8s.io/cluster-api"
	kwokModule       = "sigs.k8s.io/kwok"
)

// Binaries are the programs of a control plane and the source folders of the
// modules whose manifests it applies.
type Binaries struct {
	Kube       string // etcd, the components of Kubernetes, and kubectl
	CAPI       string
	KWOK       string
	CAPIModule string
	KWOKModule string
}

// ControlPlaneInput is the name of the control plane among the inputs of a suite of tests.
const ControlPlaneInput = "controlplane"

// Builder builds programs into a folder and keeps them there.
type Builder struct {
	Root     string    // the repository
	CacheDir string    // "" is e2e/.cache in the repository
	Progress io.Writer // gets lines on what is being built and how far it is
	flags    []string  // more flags of go build
	kube     string    // the program to use instead of building kube
}

// stamp records what the third-party programs were built from.
type stamp struct {
	Inputs   string   `json:"inputs"`
	Binaries Binaries `json:"binaries"`
}

// ControlPlane builds the third-party programs. It takes minutes the first time, and returns at
// once if their inputs have not changed since. Concurrent builds wait for one another.
func (b Builder) ControlPlane(ctx context.Context) (Binaries, error) {
	prebuilt, err := b.built(ControlPlaneInput)
	if err != nil {
		return Binaries{}, err
	}
	if prebuilt {
		return b.readStamp()
	}
	unlock, err := b.lock()
	if err != nil {
		return Binaries{}, err
	}
	defer unlock()

	digest, err := b.inputs()
	if err != nil {
		return Binaries{}, err
	}
	if built, ok := b.upToDate(digest); ok {
		return built, nil
	}
	built, err := b.buildControlPlane(ctx)
	if err != nil {
		return Binaries{}, err
	}
	data, err := json.MarshalIndent(stamp{digest, built}, "", "  ")
	if err != nil {
		return Binaries{}, err
	}
	return built, replaceFile(b.stampPath(), data)
}

func (b Builder) buildControlPlane(ctx context.Context) (Binaries, error) {
	modules, err := b.download(ctx, kubernetesModule, capiModule, kwokModule)
	if err != nil {
		return Binaries{}, err
	}
	built := Binaries{
		Kube:       filepath.Join(b.cache(), "kube"),
		CAPI:       filepath.Join(b.cache(), "capi"),
		KWOK:       filepath.Join(b.cache(), "kwok"),
		CAPIModule: modules[capiModule].Dir,
		KWOKModule: modules[kwokModule].Dir,
	}
	version := modules[kubernetesModule].Version
	programs := []program{
		{name: "kube", source: "nstance.dev/operator/e2e/cmd/kube", variables: versionVariables(version)},
		{name: "capi", source: "sigs.k8s.io/cluster-api/core"},
		{name: "kwok", source: "sigs.k8s.io/kwok/cmd/kwok"},
	}
	if b.kube != "" {
		built.Kube, programs = b.kube, programs[1:]
	}
	return built, b.build(ctx, b.kubeModule(), programs...)
}

func (b Builder) cache() string {
	if b.CacheDir != "" {
		return b.CacheDir
	}
	return filepath.Join(b.Root, "e2e", ".cache")
}

func (b Builder) stampPath() string { return filepath.Join(b.cache(), "stamp.json") }

// readStamp returns what the stamp records.
func (b Builder) readStamp() (Binaries, error) {
	s, err := b.stamp()
	return s.Binaries, err
}

func (b Builder) stamp() (stamp, error) {
	var s stamp
	data, err := os.ReadFile(b.stampPath())
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return stamp{}, fmt.Errorf("read what the control plane was built from: %w", err)
	}
	return s, nil
}

// upToDate returns the binaries if they were built from these inputs and still exist.
func (b Builder) upToDate(inputs string) (Binaries, bool) {
	s, err := b.stamp()
	if err != nil || s.Inputs != inputs {
		return Binaries{}, false
	}
	for _, path := range []string{
		s.Binaries.Kube, s.Binaries.CAPI, s.Binaries.KWOK, s.Binaries.CAPIModule, s.Binaries.KWOKModule,
	} {
		if _, err := os.Stat(path); err != nil {
			return Binaries{}, false
		}
	}
	return s.Binaries, true
}

// kubeModule is the folder of the module of the third-party programs, whose requirements the tests
// do not need.
func (b Builder) kubeModule() string { return filepath.Join(b.Root, "e2e", "cmd", "kube") }

// inputs returns a digest of everything that the third-party programs are built from: the versions
// of all modules, our few lines around them, and the compiler.
func (b Builder) inputs() (string, error) {
	paths, err := filepath.Glob(filepath.Join(b.kubeModule(), "*.go"))
	if err != nil {
		return "", err
	}
	paths = append(paths, filepath.Join(b.kubeModule(), "go.mod"), filepath.Join(b.kubeModule(), "go.sum"))
	digest := sha256.New()
	fmt.Fprintln(digest, runtime.Version(), runtime.GOOS, runtime.GOARCH, b.cache())
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("decide whether to build: %w", err)
		}
		fmt.Fprintln(digest, filepath.Base(path), len(data))
		digest.Write(data)
	}
	return fmt.Sprintf("%x", digest.Sum(nil)), nil
}

// lock serializes builds into one cache.
func (b Builder) lock() (unlock func(), err error) {
	if err := os.MkdirAll(b.cache(), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(b.cache(), "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		fmt.Fprintln(b.Progress, "waiting for another build to finish")
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return func() { _ = file.Close() }, nil
}

// parts are the parts of kube (e2e/cmd/kube), the modules that they are built from, and the
// arguments with which they print their version.
var parts = []struct{ name, module, version string }{
	{"etcd", "go.etcd.io/etcd/server/v3", "--version"},
	{APIServer, kubernetesModule, "--version"},
	{ControllerManager, kubernetesModule, "--version"},
	{Scheduler, kubernetesModule, "--version"},
	{"kubectl", kubernetesModule, "version --client"},
}

// ControlPlaneWithInstalledKube is ControlPlane without a build of kube, if all its parts are
// installed in the folder KUBEBUILDER_ASSETS (https://book.kubebuilder.io/reference/envtest.html)
// or in PATH, in the same minor versions.
func (b Builder) ControlPlaneWithInstalledKube(ctx context.Context) (Binaries, error) {
	b, err := b.withInstalledKube(ctx)
	if err != nil {
		return Binaries{}, err
	}
	return b.ControlPlane(ctx)
}

// withInstalledKube returns a builder that uses the installed parts, or b if a part is missing.
func (b Builder) withInstalledKube(ctx context.Context) (Builder, error) {
	script := "#!/bin/sh\n# Runs a part like e2e/cmd/kube.\ncase ${0##*/} in kubectl) part=kubectl ;; *) part=$1; shift ;; esac\ncase $part in\n"
	var found []string
	for _, part := range parts {
		path := b.findInstalled(part.name)
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
	// The programs of the tests stay as they are, in another folder.
	b.CacheDir = filepath.Join(b.cache(), "athand")
	b.kube = filepath.Join(b.CacheDir, "kube")
	if err := os.MkdirAll(b.CacheDir, 0o755); err != nil {
		return b, err
	}
	return b, os.WriteFile(b.kube, []byte(script+"esac\n"), 0o755)
}

// findInstalled returns the path of a program that this package has not built, "" if it is not
// found.
func (b Builder) findInstalled(name string) string {
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
