// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/e2e/testcluster"
)

// The operator and a shard server are killed while a pool is scaled up, and again while it
// is scaled down: no instance has two machines, none that runs is replaced, and none is left.
// A machine that Docker has not started when its server is killed counts as failed, and is
// replaced.
func TestCrashesWhileAPoolIsScaled(t *testing.T) {
	const name = "crashes"
	env.CreatePoolForTest(t, name, 0)
	createDeployment(t, name, 6)

	env.Scale(t, name, 6)
	containers.untilStarted(t, name, 2)
	before := containers.started(t, name)
	crash(t, shardIDs[1])
	env.UntilRunning(t, name, 6)
	untilAvailable(t, name, 6)
	interrupted := containers.removed(t, name)
	for _, instance := range interrupted {
		assert.NotContains(t, before, instance, "instances that were replaced")
	}
	containers.expectCounts(t, name, 6+len(interrupted), len(interrupted))
	assert.Len(t, ids(t, name), 6)

	// The last shard has none afterwards. Its drains take some seconds, because the budget
	// allows one eviction at a time.
	env.Scale(t, name, 2)
	untilCount(t, "stopped", containers.stopped, name, len(interrupted)+1)
	crash(t, shardIDs[2])
	containers.untilRemoved(t, name, len(interrupted)+4)
	env.UntilRunning(t, name, 2)
	containers.expectCounts(t, name, 6+len(interrupted), 4+len(interrupted))
	containers.expectDrained(t, name, 4+len(interrupted))
	assert.Len(t, ids(t, name), 2)
	untilAvailable(t, name, 6)
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
