// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

// The operator and a shard server are killed while a pool is scaled up, and again while it
// is scaled down: no instance has two machines, none that runs is replaced, and none is left.
// A machine that Docker has not started when its server is killed counts as failed, and is
// replaced.
func TestCrashesWhileAPoolIsScaled(t *testing.T) {
	const name = "crashes"
	large, small := tier.Pick[int32](3, 6), tier.Pick[int32](1, 2)
	env.CreatePoolForTest(t, name, 0)
	createDeployment(t, name, small)

	env.Scale(t, name, large)
	containers.untilStarted(t, name, int(small))
	before := containers.started(t, name)
	crash(t, shardIDs[1])
	env.UntilRunning(t, name, large)
	// With a Deployment of this size from the start, all Pods might be on Nodes that stay.
	scaleDeployment(t, name, large)
	untilAvailable(t, name, large)
	interrupted := containers.removed(t, name)
	for _, instance := range interrupted {
		assert.NotContains(t, before, instance, "instances that were replaced")
	}
	containers.expectCounts(t, name, int(large)+len(interrupted), len(interrupted))
	assert.Len(t, ids(t, name), int(large))

	// The last shard has none afterwards. Its drains take some seconds, because the budget
	// allows one eviction at a time.
	env.Scale(t, name, small)
	untilCount(t, "stopped", containers.stopped, name, len(interrupted)+1)
	crash(t, shardIDs[2])
	gone := int(large-small) + len(interrupted)
	containers.untilRemoved(t, name, gone)
	env.UntilRunning(t, name, small)
	containers.expectCounts(t, name, int(large)+len(interrupted), gone)
	containers.expectDrained(t, name, gone)
	assert.Len(t, ids(t, name), int(small))
	untilAvailable(t, name, large)
}

// crash kills the operator and the server of a shard, and starts both again.
func crash(t *testing.T, shard string) {
	t.Helper()
	testcluster.Kill(t, env.OperatorProcess())
	testcluster.Kill(t, env.ShardServer(shard))
	env.ReleaseLease(t)
	testcluster.Start(t, env.ShardServer(shard))
	testcluster.Start(t, env.OperatorProcess())
}
