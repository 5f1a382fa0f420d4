// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package shardfaults shows that no instance is lost while the servers of shards, their storage,
// their clocks or the network to them fail, on a cluster like the cluster of package operator. The
// pools of a test stay: the cluster is deleted with them.
package shardfaults

import (
	"testing"
	"time"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

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
		// Programs with such clocks are separate builds, which take minutes.
		Clocks:        tier.Full(),
		Shards:        shards,
		PoolSettings:  testcluster.RotationAndCandidates,
		OperatorFlags: append([]string{"--resync-period", "5s"}, testcluster.ShortProbe...),
	})
}
