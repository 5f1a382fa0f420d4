// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package external shows the operator in a management cluster, with Cluster API, and the
// Nodes and Pods in a workload cluster. Both are real control planes. The pools of a test
// may stay: the clusters are deleted with them.
package external

import (
	"testing"
	"time"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

const (
	// shard is the only shard, and group its group for Pods that request a machine.
	shard, group = "us-west-2a", "on-demand"
	// drainTimeout is longer than the tests wait: a test whose drain times out fails.
	drainTimeout = 10 * time.Minute
	// timeout is how long a test waits for an expected state.
	timeout = 2 * time.Minute
)

// env is the management cluster, which has the workload cluster.
var env *testcluster.Cluster

func TestMain(m *testing.M) {
	testcluster.Main(m, &env, testcluster.Options{
		External: true,
		Shards: []installation.Shard{{
			ID: shard, DrainTimeout: drainTimeout,
			Groups: map[string]installation.Group{group: {Template: installation.OnDemandTemplate}},
		}},
		OperatorFlags: []string{"--resync-period", "10s", "--on-demand-namespaces=*"},
	})
}
