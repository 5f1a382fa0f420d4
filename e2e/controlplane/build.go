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
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Modules whose programs or files the control plane takes. Their versions are
// those of e2e/cmd/kube/go.mod.
const (
	kubernetesModule = "k8s.io/kubernetes"
	capiModule       = "sigs.k8s.io/cluster-api"
	kwokModule       = "sigs.k8s.io/kwok"
)

// Binaries are the programs of a control plane and the source folders of the
// modules whose manifests it applies.
type Binaries struct {
	Kube       string // etcd, the API server and its like, kubectl
	CAPI       string
	KWOK       string
	CAPIModule string
	KWOKModule string
}

// Builder builds programs into a folder and keeps them there.
type Builder struct {
	Root     string    // the repository
	CacheDir string    // "" is e2e/.cache in the repository
	Progress io.Writer // gets lines on what is being built and how far it is
	flags    []string  // more flags of go build
}

// stamp records what the third-party programs were built from.
type stamp struct {
	Inputs   string   `json:"inputs"`
	Binaries Binaries `json:"binaries"`
}

// ControlPlane builds the third-party programs. It takes minutes the first
// time and nothing when none of their inputs has changed since. Concurrent
// builds wait for one another.
func (b Builder) ControlPlane(ctx context.Context) (Binaries, error) {
	unlock, err := b.lock()
	if err != nil {
		return Binaries{}, err
	}
	defer unlock()

	inputs, err := b.inputs()
	if err != nil {
		return Binaries{}, err
	}
	if built, ok := b.upToDate(inputs); ok {
		return built, nil
	}
	built, err := b.buildControlPlane(ctx)
	if err != nil {
		return Binaries{}, err
	}
	data, err := json.MarshalIndent(stamp{inputs, built}, "", "  ")
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
	outdated, err := b.outdated(ctx, b.kubeModule(), programs...)
	if err != nil {
		return Binaries{}, err
	}
	return built, b.build(ctx, b.kubeModule(), outdated, programs...)
}

// Product builds nstance-operator and nstance-server from the repository and
// returns their paths.
func (b Builder) Product(ctx context.Context) (operator, server string, err error) {
	unlock, err := b.lock()
	if err != nil {
		return "", "", err
	}
	defer unlock()
	err = b.build(ctx, b.Root, 0,
		program{name: "nstance-operator", source: "nstance.dev/operator/cmd/nstance-operator"},
		program{name: "nstance-server", source: "nstance.dev/operator/cmd/nstance-server"})
	return filepath.Join(b.cache(), "nstance-operator"), filepath.Join(b.cache(), "nstance-server"), err
}

// Plugin builds kubectl-nstance and returns its path.
func (b Builder) Plugin(ctx context.Context) (string, error) {
	unlock, err := b.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	err = b.build(ctx, b.Root, 0, program{name: "kubectl-nstance", source: "nstance.dev/operator/cmd/kubectl-nstance"})
	return filepath.Join(b.cache(), "kubectl-nstance"), err
}

// Admin builds nstance-admin and returns its path.
func (b Builder) Admin(ctx context.Context) (string, error) {
	unlock, err := b.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	err = b.build(ctx, b.Root, 0, program{name: "nstance-admin", source: "nstance.dev/operator/cmd/nstance-admin"})
	return filepath.Join(b.cache(), "nstance-admin"), err
}

// Agents builds nstance-agent, and the server of shards whose machines are its processes
// (e2e/agentcloud), and returns their paths.
func (b Builder) Agents(ctx context.Context) (agent, server string, err error) {
	unlock, err := b.lock()
	if err != nil {
		return "", "", err
	}
	defer unlock()
	err = errors.Join(
		b.build(ctx, b.Root, 0, program{name: "nstance-agent", source: "nstance.dev/operator/cmd/nstance-agent"}),
		b.build(ctx, filepath.Join(b.Root, "e2e"), 0, program{name: "agentserver", source: "nstance.dev/operator/e2e/cmd/agentserver"}))
	return filepath.Join(b.cache(), "nstance-agent"), filepath.Join(b.cache(), "agentserver"), err
}

// Marekvs builds marekvs-operator and returns its path.
func (b Builder) Marekvs(ctx context.Context) (string, error) {
	unlock, err := b.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	err = b.build(ctx, b.Root, 0, program{name: "marekvs-operator", source: "nstance.dev/operator/cmd/marekvs-operator"})
	return filepath.Join(b.cache(), "marekvs-operator"), err
}

func (b Builder) cache() string {
	if b.CacheDir != "" {
		return b.CacheDir
	}
	return filepath.Join(b.Root, "e2e", ".cache")
}

func (b Builder) stampPath() string { return filepath.Join(b.cache(), "stamp.json") }

// upToDate returns what was built from the same inputs and is still there.
func (b Builder) upToDate(inputs string) (Binaries, bool) {
	data, err := os.ReadFile(b.stampPath())
	if err != nil {
		return Binaries{}, false
	}
	var s stamp
	if err := json.Unmarshal(data, &s); err != nil || s.Inputs != inputs {
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

// kubeModule is the module of the third-party programs, which require much that the
// tests do not.
func (b Builder) kubeModule() string { return filepath.Join(b.Root, "e2e", "cmd", "kube") }

// inputs is a digest of all that decides what the third-party programs are:
// the versions of all modules, our few lines around them, and the compiler.
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
