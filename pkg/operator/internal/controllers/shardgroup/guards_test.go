// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// A group that is being deleted on its shard, although it is as the object wants it, is
// created again.
func TestPlanOfAGroupThatItsShardDeletes(t *testing.T) {
	assert.Equal(t, nothing, plan(newObject(), connected(reported()), nil, then.Time))
	deleting := changed(reported(), func(g *shard.Group) { g.Deleting = true })
	assert.Equal(t, upsert, plan(newObject(), connected(deleting), nil, then.Time))
}

// A shard that is not connected has rejected the former spec. That says nothing of the new
// one.
func TestRejectionOfAFormerSpec(t *testing.T) {
	object := newObject()
	rejected := &rejection{revision: revisionOf(object), message: "no such template"}
	lost := observation{configured: true, lost: shardtest.Unavailable}
	for generation, want := range map[int64]bool{1: true, 2: false} {
		object.Generation = generation
		status := newStatus(object, lost, outcome{now: then}, rejected)
		assert.Equal(t, want, meta.IsStatusConditionFalse(status.Conditions, v1beta1.ConditionConfigValid), "generation %d", generation)
	}
}

// A shard that is connected is not reachable for users before its groups were read.
func TestConnectedShardWhoseGroupsAreNotKnown(t *testing.T) {
	status := newStatus(newObject(), observation{configured: true, reachable: true}, outcome{now: then}, nil)
	reachable := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionShardReachable)
	assert.Equal(t, metav1.ConditionUnknown, reachable.Status)
	assert.Equal(t, v1beta1.ReasonNotSynced, reachable.Reason)
}

// A list that confirms the deletion of a former object of the name confirms none of this one.
func TestDeletionOfAFormerObject(t *testing.T) {
	object := newObject()
	key := controllertest.Key(object.Name)
	h := newHarness(t, object)
	for uid, want := range map[types.UID]bool{object.UID: true, "former": false} {
		h.controller.unlisted[key] = unlisted{uid: uid}
		awaited, confirmed := h.controller.reviewDeletion(key, object, nil)
		assert.Equal(t, want, confirmed, uid)
		assert.False(t, awaited, uid)
	}
}

// The annotation that replaces what a shard has counts for a newer revision only: any other
// deletion has the revision of the object.
func TestRevisionOfADeletion(t *testing.T) {
	h := newHarness(t, newObject())
	var sent *shard.Revision
	h.Fake.OnDelete = func(_, _ string, revision *shard.Revision) error {
		sent = revision
		return nil
	}
	object := newObject()
	object.Generation = 3
	for has, want := range map[int64]int64{2: 3, 3: 3, 4: 4} {
		group := changed(reported(), func(g *shard.Group) { g.Revision = &shard.Revision{UID: string(object.UID), Generation: has} })
		object.Annotations = map[string]string{v1beta1.AnnotationReplaces: group.Revision.String()}
		assert.NoError(t, h.controller.remove(h.Ctx, controllertest.Key(object.Name), object, connected(group)))
		assert.Equal(t, want, sent.Generation, "the shard has generation %d", has)
	}
}

// When all drains of a shard are known, only what they change is synced.
func TestKnownDrainsEnqueueGroupsThatHadDrains(t *testing.T) {
	for draining, want := range map[int32][]string{0: nil, 2: {"workers--a at 1s"}} {
		object := newObject()
		object.Status.Draining = &draining
		h := newHarness(t, object)
		got := controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.drainsReported("a") })
		assert.Equal(t, want, got, "%d drains", draining)
	}
}
