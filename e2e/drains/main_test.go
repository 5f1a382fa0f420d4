// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package drains shows that the Nodes of instances that are being deleted are
// drained in time: on a real control plane with its controllers and scheduler,
// whose Pods kwok runs, and with shard servers that the operators reach through
// relays, which record every acknowledgement.
//
// The tests do not delete what they create: the cluster is deleted with them.
package drains

import (
	"context"
	"testing"
	"time"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

const (
	// steadyShard is up all the time. restartedShard is restarted by a test.
	steadyShard    = "us-west-2a"
	restartedShard = "us-west-2b"

	// drainTimeout is long enough for what has to happen while a drain is
	// blocked, and short enough to wait for once.
	drainTimeout = time.Minute

	// timeout is how long a test waits for what must happen.
	timeout = 2 * time.Minute
)

// electionFlags let a standby lead soon after the leader was killed.
var electionFlags = []string{
	"--leader-elect-lease-duration", "4s",
	"--leader-elect-renew-deadline", "3s",
	"--leader-elect-retry-period", "500ms",
}

// env is the cluster that all tests of this package share.
var env struct {
	*testcluster.Cluster
	// drains are by shard.
	drains          map[string]*drainRecorder
	forcedDeletions *forcedDeletions
}

func TestMain(m *testing.M) {
	testcluster.Main(m, &env.Cluster, testcluster.Options{
		Clocks:     true,
		AuditReads: []string{dashboardUser},
		Shards: []installation.Shard{
			{ID: steadyShard, DrainTimeout: drainTimeout},
			{ID: restartedShard, DrainTimeout: drainTimeout},
		},
		Prepare:       prepare,
		OperatorFlags: electionFlags,
	})
}

// prepare starts the relays, through which alone the operator reaches the shards.
func prepare(ctx context.Context) (err error) {
	env.drains = map[string]*drainRecorder{}
	for _, shard := range []string{steadyShard, restartedShard} {
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
