// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package standalone has tests of shard servers without an operator, whose calls the tests make:
// the programs nstance-server and nstance-agent, and a storage in S3. Tests with containers or
// virtual machines as instances have no Kubernetes; make test-machines runs them. Tests with Nodes
// as instances have only an API server.
package standalone

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"testing"

	"nstance.dev/operator/e2e/controlplane"
)

// enabled is the environment variable without which the tests with containers and virtual
// machines are skipped: make test-machines sets it.
const enabled = "NSTANCE_TEST_MACHINES"

// The programs that the tests run.
const (
	serverProgram = "nstance-server"
	agentProgram  = "nstance-agent"
)

// programs are the paths of the programs, by name. They are static: guests and containers have
// no libraries.
var programs map[string]string

func TestMain(m *testing.M) {
	root, err := controlplane.FindRoot(".")
	if err == nil {
		programs, err = controlplane.Builder{Root: root, Progress: os.Stderr}.Programs(context.Background(), serverProgram, agentProgram)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	log.SetOutput(io.Discard) // proxies log each call that a killed server has cut
	os.Exit(m.Run())
}

func skipUnlessEnabled(t *testing.T) {
	t.Helper()
	if os.Getenv(enabled) == "" {
		t.Skipf("%s is not set (make test-machines)", enabled)
	}
}
