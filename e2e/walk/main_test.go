// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package walk changes pools at random while parts of the system fail at random, and
// compares Kubernetes, the servers and their provider with a model after each step.
package walk

import (
	"slices"
	"testing"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

var (
	instanceTypes = []string{"m7i.large", "m7i.xlarge"}
	// shardIDs are the shards of the cluster, in the order in which pools list them.
	shardIDs = []string{"us-west-2a", "us-west-2b", "us-west-2c"}
	// env is the cluster that all tests of this package share.
	env *testcluster.Cluster
)

func TestMain(m *testing.M) {
	shards := installation.Shards(shardIDs...)
	for i := range shards {
		shards[i].AllowedTypes = instanceTypes
	}
	testcluster.Main(m, &env, testcluster.Options{
		Shards: shards,
		// A MachinePool that is being deleted when Cluster API restarts may wait for two sync
		// periods.
		CAPIFlags:     []string{"--sync-period", "1m"},
		OperatorFlags: slices.Concat(testcluster.ShortLease, []string{"--resync-period", "10s"}),
	})
}
