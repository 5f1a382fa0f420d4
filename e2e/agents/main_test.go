// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package agents shows the guarantees of agents with processes only: shard servers of which
// one leads and one stands by, a cloud, and machines that are nstance-agents, which reach
// the servers through proxies that can lose packets. There is no Kubernetes.
package agents

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"nstance.dev/operator/e2e/controlplane"
)

// timeout is how long a test waits for an expected state.
const timeout = 3 * time.Minute

// agentProgram and serverProgram are the paths of nstance-agent and agentserver.
var agentProgram, serverProgram string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	root, err := controlplane.FindRoot(".")
	if err == nil {
		builder := controlplane.Builder{Root: root, Progress: os.Stderr}
		agentProgram, serverProgram, err = builder.Agents(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
