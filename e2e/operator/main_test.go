// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package operator shows the operator's guarantees on a real control plane: etcd, kube-apiserver,
// Cluster API, three shard servers, and operators with only the shipped rights.
package operator

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
	// shards are the shards of the installation, with their ports.
	shards = installation.Shards(shardIDs...)
	// env is the cluster that all tests of this package share.
	env *testcluster.Cluster
)

func TestMain(m *testing.M) {
	testcluster.Main(m, &env, testcluster.Options{
		Shards: shards,
		// Otherwise a stall of the machine would look like a shard that does not respond.
		OperatorFlags: []string{"--resync-period", resync.String(), "--shard-probe-interval", "5s"},
	})
}
