// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package capi tests the operator from the side of Cluster API, the cluster autoscaler and
// kubectl: their view of its objects, and their rights. The cluster is like the cluster of package
// operator.
package capi

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
	testcluster.Main(m, &env, testcluster.Options{
		AuditReads: []string{capiUser}, Shards: installation.Shards(shardIDs...),
		OperatorFlags: []string{"--resync-period", resync.String()},
	})
}
