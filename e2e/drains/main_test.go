// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package drains shows that the Nodes of instances that are being deleted are
// drained in time: on a real control plane with its controllers and scheduler,
// whose Pods kwok runs, and with shard servers that the operators reach through
// relays, which record every acknowledgement.
//
// The tests do not delete their objects: the cluster is deleted afterwards.
package drains

import (
	"context"
	"testing"
	"time"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

const (
	// steadyShard is up all the time. restartedShard and forgetfulShard are restarted by a
	// test each, the latter without its cache. On impatientShard a drain that stays blocked
	// times out.
	steadyShard    = "us-west-2a"
	restartedShard = "us-west-2b"
	impatientShard = "us-west-2c"
	forgetfulShard = "us-west-2d"

	// drainTimeout is longer than the tests wait: a test whose drain times out fails.
	drainTimeout = 5 * time.Minute
	// shortDrainTimeout is the drain timeout of impatientShard: twice the time after which a drain
	// is reported as blocked.
	shortDrainTimeout = 30 * time.Second

	// timeout is how long a test waits for an expected state.
	timeout = 2 * time.Minute
)

// env is the cluster that all tests of this package share.
var env struct {
	*testcluster.Cluster
	// drains has the recorder of each shard.
	drains          map[string]*drainRecorder
	forcedDeletions *forcedDeletions
}

func TestMain(m *testing.M) {
	testcluster.Main(m, &env.Cluster, testcluster.Options{
		// Programs with such clocks are separate builds, which take minutes.
		Clocks:     tier.Full(),
		AuditReads: []string{dashboardUser},
		Shards: []installation.Shard{
			{ID: steadyShard, DrainTimeout: drainTimeout},
			{ID: restartedShard, DrainTimeout: drainTimeout},
			{ID: impatientShard, DrainTimeout: shortDrainTimeout},
			{ID: forgetfulShard, DrainTimeout: drainTimeout},
		},
		Prepare:       prepare,
		OperatorFlags: testcluster.ShortProbe,
	})
}

// prepare starts the relays, through which the operator reaches the shards.
func prepare(ctx context.Context) (err error) {
	env.drains = map[string]*drainRecorder{}
	for _, shard := range env.ShardIDs {
		if env.drains[shard], err = startDrainRecorder(ctx, shard); err != nil {
			return err
		}
	}
	env.forcedDeletions, err = watchForcedDeletions(ctx, env.Kube)
	return err
}

// evictions returns the operators' attempts since from to evict a Pod.
func evictions(t testing.TB, from controlplane.Position, namespace, name string) []controlplane.Request {
	t.Helper()
	return env.OperatorRequests(t, from, isEviction, func(r controlplane.Request) bool {
		return r.Namespace == namespace && r.Name == name
	})
}

func isEviction(r controlplane.Request) bool {
	return r.Verb == "create" && r.Resource == "pods" && r.Subresource == "eviction"
}
