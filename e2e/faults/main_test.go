// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package faults shows that the operator loses no instance while the API server, its configuration
// or its shards fail, on a cluster like the cluster of package operator. The pools of a test stay:
// the cluster is deleted with them.
package faults

import (
	"testing"
	"time"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// resync is short, so that resyncs happen while a test expects no writes.
const resync = 5 * time.Second

var (
	// shardIDs are the shards of the cluster, in the order in which pools list them.
	shardIDs = []string{"us-west-2a", "us-west-2b", "us-west-2c"}
	// env is the cluster that all tests of this package share.
	env *testcluster.Cluster
)

func TestMain(m *testing.M) {
	shards := installation.Shards(shardIDs...)
	for i := range shards {
		// Each fault waits for new instances.
		shards[i].BootDelay = 100 * time.Millisecond
		shards[i].AllowedTypes = testcluster.AllowedTypes
	}
	testcluster.Main(m, &env, testcluster.Options{
		Shards: shards, PoolSettings: testcluster.RotationAndCandidates,
		OperatorFlags: []string{"--resync-period", resync.String(), "--on-demand-namespaces=*"},
	})
}
