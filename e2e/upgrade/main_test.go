// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package upgrade shows that operator and servers of the previous version and of this one work
// side by side and replace each other without a loss, on a cluster like the cluster of package
// operator.
package upgrade

import (
	"context"
	"testing"
	"time"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/previous"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

var (
	// shardIDs are the shards of the cluster, in the order in which pools list them.
	shardIDs = tier.Pick([]string{"us-west-2a", "us-west-2b"}, []string{"us-west-2a", "us-west-2b", "us-west-2c"})
	// env is the cluster that the test uses.
	env *testcluster.Cluster
	// before is the previous version.
	before previous.Version
)

func TestMain(m *testing.M) {
	shards := installation.Shards(shardIDs...)
	for i := range shards {
		// The timeout is longer than the test, so that a drain ends only when its Pod may be
		// evicted.
		shards[i].DrainTimeout = time.Hour
	}
	testcluster.Main(m, &env, testcluster.Options{Shards: shards, Prepare: buildPrevious, OperatorFlags: []string{}})
}

// buildPrevious builds the programs of the previous version.
func buildPrevious(ctx context.Context) error {
	root, err := controlplane.FindRoot(".")
	if err != nil {
		return err
	}
	before, err = previous.Build(ctx, root)
	return err
}
