// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package monitoring tests the tools of a user on call: a Prometheus with the shipped settings and
// rules, which reads the metrics of an operator and of two shard servers, and kubectl with the
// plugin.
package monitoring

import (
	"fmt"
	"os"
	"testing"
	"time"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

const (
	steadyShard = "us-west-2a"
	// slowShard is the shard that has most of the faults.
	slowShard = "us-west-2b"
	// bootDelay is the boot delay of the slow shard. On the other shard it is a second.
	bootDelay = 8 * time.Second
	// drainTimeout is longer than drains are blocked here.
	drainTimeout = 20 * time.Minute
	// timeout is how long a test waits for an expected state.
	timeout = 2 * time.Minute
	// scarceType is the instance type of which a shard runs out.
	scarceType = "m7i.xlarge"
)

var (
	// shards are the shards of the installation, with their ports.
	shards = []installation.Shard{
		{ID: steadyShard, DrainTimeout: drainTimeout},
		{ID: slowShard, DrainTimeout: drainTimeout, BootDelay: bootDelay},
	}
	// env is the cluster that all tests of this package share.
	env *testcluster.Cluster
	// metricsAddress is where the operator serves metrics over TLS.
	metricsAddress string
)

func TestMain(m *testing.M) {
	if _, err := findPrometheus(); err != nil {
		// Every test needs Prometheus. Without it no cluster is started, and every test is
		// skipped.
		os.Exit(m.Run())
	}
	port := 0
	if err := controlplane.FillInPorts([]*int{&port}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	metricsAddress = fmt.Sprintf("127.0.0.1:%d", port)
	testcluster.Main(m, &env, testcluster.Options{
		Shards: shards, OperatorFlags: []string{"--metrics-address", metricsAddress},
	})
}
