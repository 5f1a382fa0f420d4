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

	"nstance.dev/operator/e2e/inputs"
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

// ControlPlane builds the third-party programs. It takes minutes the first
// time and nothing when none of their inputs has changed since. Concurrent
// builds wait for one another.
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

// The programs of the repository, and the packages that they are built from.
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

// upToDate returns what was built from the same inputs and is still there.
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
