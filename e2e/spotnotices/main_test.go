// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package spotnotices shows what happens when a cloud announces that it will terminate many
// machines at once: agents that poll a metadata service, a shard server and an operator on
// a real control plane. The Nodes are simulated.
package spotnotices

import (
	"testing"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// env is the cluster that all tests of this package share.
var env *testcluster.Cluster

func TestMain(m *testing.M) {
	testcluster.Main(m, &env, testcluster.Options{
		// The operator registers at this shard. Those of the tests run in their process.
		Shards:        installation.Shards("us-west-2a"),
		OperatorFlags: []string{},
	})
}
