// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package scale measures an installation of many groups: a control plane of its own, three shard
// servers whose configuration contains the groups, and an operator that starts once all groups
// exist.
package scale

import (
	"fmt"
	"testing"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

// groups is how many groups each of the shards has. The groups have no instances: the tests count
// objects, and no Node has a kubelet.
var groups = tier.Pick(120, 1000)

var shardIDs = []string{"us-west-2a", "us-west-2b", "us-west-2c"}

// env is the cluster that the tests and the benchmark share.
var env *testcluster.Cluster

func TestMain(m *testing.M) {
	testcluster.Main(m, &env, testcluster.Options{
		Without: []string{controlplane.KWOK, controlplane.Scheduler}, Shards: shards(),
	})
}

// shards all have the same groups.
func shards() []installation.Shard {
	configured := map[string]installation.Group{}
	for i := range groups {
		configured[groupName(i)] = installation.Group{Size: 0}
	}
	var shards []installation.Shard
	for _, id := range shardIDs {
		shards = append(shards, installation.Shard{ID: id, Groups: configured})
	}
	return shards
}

func groupName(i int) string { return fmt.Sprintf("group-%03d", i) }
