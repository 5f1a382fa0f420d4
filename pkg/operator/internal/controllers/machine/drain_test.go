// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

// Cluster API has not drained the Node, because there was no Machine. The shard does,
// because its group is deleted with the pool.
func TestAPoolMemberWithoutAMachineIsDrainedByItsShard(t *testing.T) {
	h := newHarness(t, newShards("a", "b"), deleting(runningPoolMember("m")))
	h.list(listed(shard.InstanceRunning))
	h.addPool(5, 3, 2)
	pool := newPool()
	pool.DeletionTimestamp = deleting(newPoolMember("x")).DeletionTimestamp
	pool.Finalizers = []string{"example.com/wait"}
	require.NoError(t, h.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools"), pool, controllertest.Namespace))
	h.shardA().Notices["m"] = shard.DeletionNotice{InstanceID: "m", State: shard.Draining, Reason: "group-deleted", DeleteAt: h.FakeClock.Now().Add(time.Hour)}
	if requeue := h.Expect(applyStatusM); requeue != 0 {
		t.Errorf("syncs again in %s, want no delay", requeue)
	}
	h.expectReady(notDeleted + "no Machine owns it, and the shard is draining it")
	h.shardA().Notices["m"] = shard.DeletionNotice{InstanceID: "m", State: shard.Deleting}
	h.Expect(deleteMOnA, applyStatusM)

	// The shard has cancelled its drain, and the NstanceMachine is still being deleted.
	t.Run("until the drain is cancelled", func(t *testing.T) {
		h := newHarness(t, newShards("a"), deleting(runningPoolMember("m")))
		h.shardA().Notices["m"] = shard.DeletionNotice{InstanceID: "m", State: shard.Draining}
		h.Expect(applyStatusM)
		delete(h.shardA().Notices, "m")
		h.Expect(deleteMOnA, applyStatusM)
	})
	t.Run("but not with a Machine", func(t *testing.T) {
		h := newHarness(t, newShards("a"), deleting(owned(runningPoolMember("m"))))
		h.shardA().Notices["m"] = shard.DeletionNotice{InstanceID: "m", State: shard.Draining}
		h.Expect(deleteMOnA, applyStatusM)
	})
}
