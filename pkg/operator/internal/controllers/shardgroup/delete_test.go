// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

const deleteGroup = "delete workers on a"

func TestDeletionWaitsForTheShard(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.setGroup(reported())
	h.Expect(deleteGroup, writeStatus)
	// The deletion is accepted, but the group still exists.
	h.setGroup(changed(reported(), func(g *shard.Group) { g.Size, g.Deleting, g.ActualSize, g.ProviderIDs = 0, true, 1, []string{"i-3"} }))
	h.Expect(writeStatus)
	if got, want := h.conditions(), "Ready=False Deleting: the shard is terminating the instances of the group"; !slices.Contains(got, want) {
		t.Errorf("the conditions are %q, want %q", got, want)
	}
	if got := h.object().Status.ProviderIDs; !slices.Equal(got, []string{"i-3"}) {
		t.Errorf("the provider ids are %q while one instance is left", got)
	}
	h.Expect()
	h.setGroup(nil)
	h.ExpectEvents("Normal DeletingGroup from 3 to 0 instances: the shard deletes the group; requestID ID; written: shards")
	h.Expect(deleteGroup, release)
	if h.object() != nil {
		t.Error("the object is still there")
	}
	assert.Equal(t, []string{`Normal GroupDeleted shard "a" has deleted group "workers"`}, h.Events())
	h.Expect()
}

// The cache may be older than the deletion: it may lack a group that a call without a reply,
// or another process, has created. Its instances run until the shard deletes them.
func TestDeletionIsConfirmedByALaterList(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.a().Unlisted = true
	assert.Equal(t, listedRetry, h.Expect(deleteGroup, writeStatus))
	assert.Equal(t, listedRetry, h.Expect())
	require.NotNil(t, h.object())

	// The list still has the group, but no second deletion is sent.
	h.a().Unlisted = false
	h.setGroup(changed(reported(), func(g *shard.Group) { g.Size, g.Deleting, g.ActualSize = 0, true, 3 }))
	assert.Zero(t, h.Expect(writeStatus))
	assert.Zero(t, h.Expect())
	require.NotNil(t, h.object())
	assert.Equal(t, []string{"i-1", "i-2", "i-3"}, h.object().Status.ProviderIDs)

	h.setGroup(nil)
	h.a().Unlisted = true
	assert.Equal(t, listedRetry, h.Expect(deleteGroup, writeStatus))
	h.a().Unlisted = false
	h.Expect(release)
	assert.Nil(t, h.object())
	h.Expect()
	assert.Empty(t, h.controller.unlisted)
}

// The shard of a restored object may not have the group. The list then does not change the
// cache, and may arrive before the sync that sent the deletion has ended.
func TestDeletionIsConfirmedByAListDuringTheSync(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.a().Unlisted = true
	h.PrependReactor("patch", "nstanceshardgroups", func(clienttesting.Action) (bool, runtime.Object, error) {
		h.a().Unlisted = false
		return false, nil, nil
	})
	assert.Equal(t, listedRetry, h.Expect(deleteGroup, writeStatus))
	h.Expect(release)
	assert.Nil(t, h.object())
}

// If the pool is paused meanwhile, the object is not synced repeatedly.
func TestDeletionOfAPausedPool(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.a().Unlisted = true
	h.Expect(deleteGroup, writeStatus)
	h.a().Unlisted, h.paused = false, "MachinePool workers"
	assert.Zero(t, h.Expect(writeStatus))
	h.paused = ""
	h.Expect(release)
}

// A disconnected server has sent no list since.
func TestDeletionIsNotConfirmedByADisconnectedShard(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.a().Unlisted = true
	h.Expect(deleteGroup, writeStatus)
	h.a().Reachable, h.a().Lost = false, lost
	assert.Zero(t, h.Expect(writeStatus), "the shard enqueues it")
	h.a().Reachable, h.a().Lost, h.a().Unlisted = true, nil, false
	h.Expect(release)
}

// A server that still has the group is not called repeatedly.
func TestDeletionThatTheServerDoesNotCarryOut(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.setGroup(reported())
	h.a().Unlisted = true
	assert.Equal(t, listedRetry, h.Expect(deleteGroup, writeStatus))
	h.a().Unlisted = false
	assert.Zero(t, h.Expect())
	assert.Zero(t, h.Expect(deleteGroup), "at the next change")
}

// A static group returns to the settings of the server's configuration.
func TestDeletionOfAStaticGroupEndsWithTheReply(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.setGroup(changed(reported(), func(g *shard.Group) { g.Static = true }))
	h.Expect(deleteGroup, release)
}

func TestDeletionOfAPausedGroupWaits(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.setGroup(reported())
	h.paused = "Cluster dev has spec.paused"
	h.Expect(writeStatus)
	if got, want := h.conditions(), "Ready=False Deleting: the shard has not confirmed the deletion of the group: Cluster dev has spec.paused"; !slices.Contains(got, want) {
		t.Errorf("the conditions are %q, want %q", got, want)
	}
	h.setGroup(nil)
	h.paused = ""
	h.Expect(deleteGroup, release)
}

func TestDeletionOfAGroupThatTheShardDoesNotHaveAsksAllTheSame(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.Expect(deleteGroup, release)
}

func TestDeletionKeepsTheFinalizersOfOthers(t *testing.T) {
	object := controllertest.Deleting(newObject())
	object.Finalizers = []string{"somebody/else", v1beta1.FinalizerShardGroup, "and/another"}
	h := newHarness(t, object)
	h.Expect(deleteGroup, release)
	if got, want := h.object().Finalizers, []string{"somebody/else", "and/another"}; !slices.Equal(got, want) {
		t.Errorf("the finalizers are %q, want %q", got, want)
	}
	h.Expect(writeStatus)
	h.Expect()
}

func TestDeletionThatTheShardRefusesKeepsTheFinalizer(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.FailedPrecondition, codes.Internal, codes.Unknown} {
		h := newHarness(t, controllertest.Deleting(newObject()))
		h.Fake.Fail["delete"] = status.Error(code, "still in use")
		did, _, err := h.Sync()
		if err == nil || !slices.Equal(did, []string{deleteGroup, writeStatus}) {
			t.Errorf("%s: did %q, error %v; want an error for the retry", code, did, err)
		}
		if got := h.object(); got == nil || len(got.Finalizers) != 1 {
			t.Fatalf("%s: the finalizer is gone", code)
		}
		if got, want := h.conditions(), "Ready=False Deleting: the shard has not confirmed the deletion of the group: still in use"; !slices.Contains(got, want) {
			t.Errorf("%s: the conditions are %q", code, got)
		}
		delete(h.Fake.Fail, "delete")
		h.Expect(deleteGroup, release)
	}
}

// The cache may be older than a change of the finalizers.
func TestDeletionKeepsTheFinalizerOfAnotherController(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.Show()
	h.change(func(g *v1beta1.NstanceShardGroup) {
		g.Finalizers = []string{"somebody/else", v1beta1.FinalizerShardGroup}
	})
	if _, _, err := h.SyncStale(); err == nil {
		t.Error("no error for the retry")
	}
	if got := h.object().Finalizers; len(got) != 2 {
		t.Errorf("the finalizers are %q", got)
	}
	h.Expect(release)
}

func TestDeletionDoesNotTakeTheFinalizerOfASuccessor(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.Show()
	h.change(func(g *v1beta1.NstanceShardGroup) { g.UID, g.DeletionTimestamp = "uid-of-the-successor", nil })
	if _, _, err := h.SyncStale(); err == nil {
		t.Error("no error for the retry")
	}
	if got := h.object().Finalizers; len(got) != 1 {
		t.Errorf("the finalizers are %q", got)
	}
}

func retainedObject() *v1beta1.NstanceShardGroup {
	object := newObject()
	object.Spec.DeletionPolicy = v1beta1.DeletionRetain
	return object
}

// No call is sent, whatever the state of the shard.
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
			h.ExpectEvents(`Normal GroupRetained shard "a" keeps group "workers" and its instances, because spec.deletionPolicy is Retain`)
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

// If a deletion was sent, it is completed: the ids of instances that are being terminated must
// stay in the pool until then.
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

// A shard group that is not being deleted is handled as with the other policy.
func TestRetainChangesNothingBeforeTheDeletion(t *testing.T) {
	h := newHarness(t, retainedObject())
	h.Expect("upsert workers on a with size 3", writeStatus)
}

// lostHarness returns a harness with a shard group that is being deleted, whose shard was
// removed from the configuration while 3 instances ran.
func lostHarness(t *testing.T) *harness {
	t.Helper()
	h := newHarness(t, newObject())
	h.setGroup(reported())
	h.Expect(writeStatus)
	delete(h.Fake.ByID, "a")
	h.change(func(g *v1beta1.NstanceShardGroup) { controllertest.Deleting(g) })
	h.Expect(writeStatus)
	h.Expect()
	return h
}

// giveUp sets the annotation with which an administrator gives up instances.
func (h *harness) giveUp(value string) {
	h.T.Helper()
	controllertest.Change(h.API, "workers--a", func(g *v1beta1.NstanceShardGroup) {
		g.Annotations = map[string]string{v1beta1.AnnotationConfirmAbandon: value}
	})
}

func TestALostShardIsGivenUpByAnAnnotation(t *testing.T) {
	h := lostHarness(t)
	want := `Ready=False Deleting: the shard has not confirmed the deletion of the group: shard "a" is not configured; ` +
		"if the shard is lost, the annotation nstance.dev/confirm-abandon=a/3 gives up the 3 instances"
	if got := h.conditions(); !slices.Contains(got, want) {
		t.Fatalf("the conditions are %q, want %q", got, want)
	}
	h.Events()
	for _, value := range []string{"", "a", "a/2", "a/4", "b/3", "a/unknown", "true"} {
		h.giveUp(value)
		h.Expect()
		require.NotNil(t, h.object(), "the annotation %q", value)
	}
	h.giveUp("a/3")
	h.Expect(release)
	assert.Nil(t, h.object())
	assert.Equal(t, []string{`Warning ShardAbandoned the instances on shard "a" were given up: a/3`}, h.Events())
}

// The annotation has an effect only when no server can confirm the deletion.
func TestTheAnnotationForALostShardIsIgnored(t *testing.T) {
	t.Run("while the shard is configured", func(t *testing.T) {
		h := lostHarness(t)
		h.Fake.ByID["a"] = shardtest.NewShard()
		h.a().Reachable, h.a().Lost = false, lost
		h.setGroup(reported())
		h.giveUp("a/3")
		h.Expect(writeStatus)
		h.Expect()
		require.NotNil(t, h.object())

		h.a().Reachable, h.a().Lost = true, nil
		h.Expect(deleteGroup, writeStatus)
		h.setGroup(changed(reported(), func(g *shard.Group) { g.Deleting = true }))
		h.Expect(writeStatus)
		require.NotNil(t, h.object())
	})
	t.Run("before the shard group is deleted", func(t *testing.T) {
		h := newHarness(t, newObject())
		h.setGroup(reported())
		h.Expect(writeStatus)
		delete(h.Fake.ByID, "a")
		h.giveUp("a/3")
		h.Expect(writeStatus)
		h.Expect()
		require.NotNil(t, h.object())
	})
	t.Run("during a pause", func(t *testing.T) {
		h := lostHarness(t)
		h.paused = "Cluster dev has spec.paused"
		h.giveUp("a/3")
		h.Expect(writeStatus)
		require.NotNil(t, h.object())
		h.paused = ""
		h.Expect(release)
	})
}

// After a restore without the status the number of instances is unknown.
func TestALostShardWithoutAStatusIsGivenUpByAnAnnotation(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	delete(h.Fake.ByID, "a")
	h.Expect(writeStatus)
	h.giveUp("a/0")
	h.Expect()
	h.giveUp("a/unknown")
	h.Expect(release)
}

// The cache may not show yet that the shard deletes the group.
func TestRetainWhileTheDeletionIsNotListed(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.setGroup(reported())
	h.a().Unlisted = true
	h.Expect(deleteGroup, writeStatus)
	h.change(func(object *v1beta1.NstanceShardGroup) { object.Spec.DeletionPolicy = v1beta1.DeletionRetain })
	h.Expect(writeStatus)
	assert.NotNil(t, h.object())
	h.setGroup(nil)
	h.a().Unlisted = false
	h.Expect(release)
}

// A restore gives objects owners that no longer exist, so that the garbage collector deletes
// them. The pool still wants the instances.
func TestDeletionThatThePoolDoesNotWantKeepsTheGroup(t *testing.T) {
	h := newHarness(t, newObject())
	h.change(func(g *v1beta1.NstanceShardGroup) { controllertest.Deleting(g) })
	h.setGroup(reported())
	h.wantedErr = errors.New("failed")
	_, _, err := h.Sync()
	require.ErrorIs(t, err, h.wantedErr)
	h.wanted, h.wantedErr = true, nil
	did, _, err := h.Sync()
	require.NoError(t, err)
	for _, call := range did {
		assert.NotContains(t, call, "delete group")
	}
	h.ExpectEvents(`Normal GroupRetained shard "a" keeps group "workers" and its instances, because its pool still has the shard`)
}

// The annotation names the object, so that a copy of it confirms no other deletion.
func TestConfirmedDeletionThatThePoolDoesNotWant(t *testing.T) {
	for value, confirmed := range map[string]bool{"workers--a": true, "workers--b": false, "true": false, "": false} {
		h := newHarness(t, newObject())
		h.change(func(g *v1beta1.NstanceShardGroup) { controllertest.Deleting(g) })
		h.setGroup(reported())
		h.wanted = true
		controllertest.Change(h.API, "workers--a", func(o *v1beta1.NstanceShardGroup) {
			o.Annotations = map[string]string{v1beta1.AnnotationConfirmDeletion: value}
		})
		did, _, err := h.Sync()
		require.NoError(t, err)
		require.NotEmpty(t, did)
		assert.Equal(t, confirmed, strings.HasPrefix(did[0], "delete"), "annotation %q: %s", value, did[0])
	}
}
