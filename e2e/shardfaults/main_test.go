// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package shardfaults shows that no instance is lost while the servers of shards, their
// storage, their clocks or the network to them fail, on a cluster like that of package
// operator.
package shardfaults

import (
	"slices"
	"testing"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

var (
	// shardIDs are the shards of the cluster, in the order in which pools list them.
	shardIDs = []string{"us-west-2a", "us-west-2b", "us-west-2c"}
	// env is the cluster that all tests of this package share.
	env *testcluster.Cluster
)

func TestMain(m *testing.M) {
	testcluster.Main(m, &env, testcluster.Options{
		Clocks:        true,
		Shards:        installation.Shards(shardIDs...),
		OperatorFlags: slices.Concat(testcluster.ShortLease, []string{"--resync-period", "5s"}),
	})
}
