// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

// outage begins a time in which a shard does not answer, until end is called or the test is
// over.
type outage func(*testing.T, *controlplane.Component) (end func())

func down(t *testing.T, shard *controlplane.Component) (end func()) {
	t.Helper()
	require.NoError(t, shard.Kill(t.Context()))
	end = sync.OnceFunc(func() { testcluster.Start(t, shard) })
	t.Cleanup(end)
	return end
}

func hanging(t *testing.T, shard *controlplane.Component) (end func()) {
	t.Helper()
	require.NoError(t, testcluster.FreezeUnlocked(shard, env.Installation.Bucket()))
	end = sync.OnceFunc(func() { assert.NoError(t, shard.Thaw()) })
	t.Cleanup(end)
	return end
}

// interrupted is a change during which a shard does not answer.
type interrupted struct {
	name string
	// change is made when the outage has begun.
	change func(*testing.T)
	// waits waits until it is reported what waits for the shard.
	waits func(*testing.T)
	// completes waits until the change is complete, after the end of the outage.
	completes func(*testing.T)
}

// interrupt makes changes during one outage of a shard.
func (o outage) interrupt(t *testing.T, shard string, changes ...interrupted) {
	t.Helper()
	end := o(t, env.ShardServer(shard))
	for _, c := range changes {
		c.change(t)
	}
	for _, c := range changes {
		t.Run(c.name+" waits", c.waits)
	}
	end()
	for _, c := range changes {
		t.Run(c.name+" completes", c.completes)
	}
}

// Changes wait for a shard that is down, and are completed when it is up again.
func TestChangesWhileAShardIsDown(t *testing.T) {
	const (
		deleted, deletedPool = "deleted-down", "deleted-down-pool"
		leaving, scaled      = "leaving-down", "outage"
		created              = "unreachable"
	)
	shard := shardIDs[2]
	pools := map[string]int32{deleted: 6, leaving: 6, scaled: 6}
	if tier.Full() {
		pools[deletedPool] = 6
	}
	runPools(t, pools)
	t.Cleanup(func() { env.DeletePools(t, leaving, scaled, created) })
	changes := []interrupted{
		interruptedDeletion(deleted, shard, deleteMachinePool),
		interruptedRemoval(leaving, shard),
		interruptedScaling(t, scaled, shard),
		interruptedCreation(created, shard),
	}
	if tier.Full() {
		changes = append(changes, interruptedDeletion(deletedPool, shard, deleteNstanceMachinePool))
	}
	outage(down).interrupt(t, shard, changes...)
}

// The same with a shard that accepts connections and does not respond.
func TestChangesWhileAShardHangs(t *testing.T) {
	const deleted, recreated = "deleted-hanging", "recreated-hanging"
	shard := shardIDs[0]
	runPools(t, map[string]int32{deleted: 6, recreated: 3})
	t.Cleanup(func() { env.DeletePools(t, recreated) })
	outage(hanging).interrupt(t, shard,
		interruptedDeletionAtOnce(t, "deleted-at-once", shard),
		interruptedDeletion(deleted, shard, deleteMachinePool),
		interruptedRecreation(recreated, shard),
	)
}
