// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package restore shows that a restore from a backup terminates nothing
// (docs/operations.md#backup-and-restore). Its instances are in shard servers that do
// not use the API server, so that they survive its restore as machines do.
package restore

import (
	"testing"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// env is the cluster that all tests of this package share.
var env *testcluster.Cluster

func TestMain(m *testing.M) {
	// The operator registers at this shard, which has no groups.
	testcluster.Main(m, &env, testcluster.Options{
		Shards: installation.Shards("us-west-2c"), OperatorFlags: testcluster.ShortLease,
	})
}
