// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package move shows that "clusterctl move" between two management clusters terminates nothing.
// Both are real control planes with Cluster API and an operator. The Nodes and Pods are in the
// second one, whichever has the objects, as after the move from a bootstrap cluster to the cluster
// that it has created.
package move

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

const (
	// group is the static group of each shard whose instances are created on demand.
	group = "on-demand"
	// fixed is a static group of each shard.
	fixed = "fixed"
	// timeout is how long a test waits for an expected state.
	timeout = 3 * time.Minute
)

// env is the first management cluster. env.Target is the second one, with the Nodes.
var env *testcluster.Cluster

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == clusterctlName {
		if err := runClusterctl(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "Error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	shards := installation.Shards("us-west-2a", "us-west-2b")
	for i := range shards {
		shards[i].Groups = map[string]installation.Group{group: {Template: installation.OnDemandTemplate}, fixed: {Size: 1}}
	}
	testcluster.Main(m, &env, testcluster.Options{
		External: true, Target: true, Shards: shards, Prepare: labelKinds, OperatorFlags: operatorFlags,
	})
}
