// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

func retainedObject() *v1beta1.NstanceShardGroup {
	object := newObject()
	object.Spec.DeletionPolicy = v1beta1.DeletionRetain
	return object
}

// No call is sent, whatever is known of the shard.
func TestDeletionWithRetainLeavesTheGroup(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"the group runs":              func(h *harness) { h.setGroup(reported()) },
		"the shard has no such group": func(*harness) {},
		"the group has another size":  func(h *harness) { h.setGroup(changed(reported(), func(g *shard.Group) { g.Size = 7 })) },
		"the shard is away":           func(h *harness) { h.a().Reachable, h.a().Lost = false, lost },
		"the shard is not synced":     func(h *harness) { h.a().Synced = false },
		"the shard is not configured": func(h *harness) { delete(h.Fake.ByID, "a") },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, controllertest.Deleting(retainedObject()))
			change(h)
			h.Expect(release)
			assert.Nil(t, h.object())
			h.ExpectEvents(`Normal GroupRetained shard "a" keeps group "workers" and its instances`)
			h.Expect()
		})
	}
}

func TestDeletionWithRetainOfAPausedGroupWaits(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(retainedObject()))
	h.setGroup(reported())
	h.paused = "Cluster dev has spec.paused"
	h.Expect(writeStatus)
	h.paused = ""
	h.Expect(release)
}

// A deletion that was sent is completed: the ids of instances that are being terminated stay
// in the pool until then.
func TestRetainAfterTheDeletionWasSent(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.setGroup(reported())
	h.Expect(deleteGroup, writeStatus)
	h.setGroup(changed(reported(), func(g *shard.Group) { g.Size, g.Deleting = 0, true }))
	h.change(func(object *v1beta1.NstanceShardGroup) { object.Spec.DeletionPolicy = v1beta1.DeletionRetain })
	h.Expect(writeStatus)
	assert.NotNil(t, h.object())
	h.setGroup(nil)
	h.Expect(release)
}

// A shard group that is not being deleted is sent as without the policy.
func TestRetainChangesNothingBeforeTheDeletion(t *testing.T) {
	h := newHarness(t, retainedObject())
	h.Expect("upsert workers on a with size 3", writeStatus)
}
