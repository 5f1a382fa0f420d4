// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package standalone

import (
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"nstance.dev/operator/e2e/controlplane"
)

// enabled is the environment variable without which the tests with containers and virtual
// machines are skipped: make test-machines sets it.
const enabled = "NSTANCE_TEST_MACHINES"

// programs is the folder of the programs.
var programs string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	root, err := controlplane.FindRoot(".")
	if err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "nstance-standalone")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	programs = dir
	// The guests and the containers have no libraries.
	build := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "-ldflags=-s -w",
		"./cmd/nstance-server", "./cmd/nstance-agent", "./pkg/server/provider/qemu/testguest/init")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build the programs: %w\n%s", err, output)
	}
	log.SetOutput(io.Discard) // where proxies write that a killed server has cut a call
	return m.Run(), nil
}

func program(name string) string { return filepath.Join(programs, name) }

func skipUnlessEnabled(t *testing.T) {
	t.Helper()
	if os.Getenv(enabled) == "" {
		t.Skipf("%s is not set (make test-machines)", enabled)
	}
}
