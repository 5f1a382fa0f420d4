// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package monitoring shows what those who are on call see: a Prometheus with the settings
// and rules that are shipped reads the metrics of an operator and of two shard servers, and
// kubectl has the plugin.
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
	// slowShard is the one to which most faults happen.
	slowShard = "us-west-2b"
	// bootDelay is that of the slow shard. The other one has a second.
	bootDelay = 8 * time.Second
	// drainTimeout is longer than drains are blocked here.
	drainTimeout = 20 * time.Minute
	// timeout is how long a test waits for what must happen.
	timeout = 2 * time.Minute
	// scarceType is the instance type of which a shard runs out.
	scarceType = "m7i.xlarge"
)

var (
	// shards are those of the installation, with their ports.
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
		// Every test needs it, so that no cluster is started.
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
