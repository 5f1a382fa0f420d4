// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package procedures runs the procedures of docs/runbooks as they are written, on a cluster
// that they leave unchanged. No procedure terminates an instance or deletes an object that it does
// not name. For a restore of etcd, the instances are in shard servers that do not use the API
// server, so that they survive its restore as machines do.
package procedures

import (
	"testing"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// env is the cluster that all tests of this package share.
var env *testcluster.Cluster

// builders is a group of each shard that has only instances that are created on demand.
const builders = "builders"

func TestMain(m *testing.M) {
	// The operator registers at these shards. Instances are deleted without a drain, so that no
	// instance is saved by an operator that connects in time.
	shards := installation.Shards("us-west-2c", "us-west-2d")
	for i := range shards {
		shards[i].Groups = map[string]installation.Group{builders: {Template: installation.OnDemandTemplate}}
	}
	testcluster.Main(m, &env, testcluster.Options{Shards: shards, OperatorFlags: append([]string{"--on-demand-namespaces=*"}, testcluster.ShortLease...)})
}
