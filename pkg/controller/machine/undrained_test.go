// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"testing"
	"time"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

// No Machine ever owned it, so Cluster API has drained nothing. The shard does, as
// its group is deleted with the pool.
func TestAMemberWithoutAMachineIsLeftToTheDrainOfItsShard(t *testing.T) {
	h := newHarness(t, newShards("a", "b"), deleting(runningMember("m")))
	h.shards.list(listed(shard.InstanceRunning))
	h.addPool(5, 3, 2)
	pool := newPool()
	pool.DeletionTimestamp = deleting(newMember("x")).DeletionTimestamp
	pool.Finalizers = []string{"example.com/wait"}
	if err := h.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools"), pool, namespace); err != nil {
		t.Fatal(err)
	}
	h.shards.notices["m"] = shard.Notice{InstanceID: "m", State: shard.Draining, Reason: "group-deleted", DeleteAt: h.clock.Now().Add(time.Hour)}
	if requeue := h.expect(applyStatusM); requeue != 0 {
		t.Errorf("looks again in %s, want to be woken", requeue)
	}
	h.expectReady(unconfirmed + "no Machine owns it, and the shard is draining it")
	h.shards.notices["m"] = shard.Notice{InstanceID: "m", State: shard.Deleting}
	h.expect(deleteOfM, applyStatusM)

	// The shard wants to keep it after all, and nobody else does.
	t.Run("as long as that goes on", func(t *testing.T) {
		h := newHarness(t, newShards("a"), deleting(runningMember("m")))
		h.shards.notices["m"] = shard.Notice{InstanceID: "m", State: shard.Draining}
		h.expect(applyStatusM)
		delete(h.shards.notices, "m")
		h.expect(deleteOfM, applyStatusM)
	})
	t.Run("and with a Machine it is not", func(t *testing.T) {
		h := newHarness(t, newShards("a"), deleting(owned(runningMember("m"))))
		h.shards.notices["m"] = shard.Notice{InstanceID: "m", State: shard.Draining}
		h.expect(deleteOfM, applyStatusM)
	})
}
