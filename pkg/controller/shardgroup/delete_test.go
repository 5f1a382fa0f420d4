// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller/controllertest"
	"nstance.dev/operator/pkg/shard"
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
	h.Expect(deleteGroup, release)
	if h.object() != nil {
		t.Error("the object is still there")
	}
	h.Expect()
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
	h.Expect(deleteGroup, release)
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
