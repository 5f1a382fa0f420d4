// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"slices"
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
)

const deleteGroup = "delete workers on a"

func TestDeletionWaitsForTheShard(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.setGroup(reported())
	h.Expect(deleteGroup, writeStatus)
	// The deletion is taken, and the group not yet gone.
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

// The cache may be older than the deletion: it may lack a group that a call without a
// reply, or another process, has created. Its instances run until the shard deletes them.
func TestDeletionIsConfirmedByALaterList(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.a().Unlisted = true
	assert.Equal(t, listedRetry, h.Expect(deleteGroup, writeStatus))
	assert.Equal(t, listedRetry, h.Expect())
	require.NotNil(t, h.object())

	// The list has the group, and no second deletion is sent for it.
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

// The shard of a restored object may have no such group. Then the list changes nothing in
// the cache, and may be there before the sync that sent the deletion has ended.
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

// A pool that is paused meanwhile is not synced again and again.
func TestDeletionOfAPausedPool(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.a().Unlisted = true
	h.Expect(deleteGroup, writeStatus)
	h.a().Unlisted, h.paused = false, "MachinePool workers"
	assert.Zero(t, h.Expect(writeStatus))
	h.paused = ""
	h.Expect(release)
}

// A server that is away has listed nothing since.
func TestDeletionIsNotConfirmedByAShardThatIsAway(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.a().Unlisted = true
	h.Expect(deleteGroup, writeStatus)
	h.a().Reachable, h.a().Lost = false, lost
	assert.Zero(t, h.Expect(writeStatus), "the shard enqueues it")
	h.a().Reachable, h.a().Lost, h.a().Unlisted = true, nil, false
	h.Expect(release)
}

// A server that has the group still is not called again and again.
func TestDeletionThatTheServerDoesNotCarryOut(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.setGroup(reported())
	h.a().Unlisted = true
	assert.Equal(t, listedRetry, h.Expect(deleteGroup, writeStatus))
	h.a().Unlisted = false
	assert.Zero(t, h.Expect())
	assert.Zero(t, h.Expect(deleteGroup), "at the next change")
}

// A static group goes back to what the server's configuration says.
func TestDeletionOfAStaticGroupEndsWithTheAnswer(t *testing.T) {
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
func TestDeletionDoesNotTakeTheFinalizerOfAnother(t *testing.T) {
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
