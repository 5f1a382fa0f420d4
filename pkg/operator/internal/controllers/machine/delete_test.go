// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

func TestDeletionDeletesTheInstance(t *testing.T) {
	h := newHarness(t, newShards("a"), deleting(running(newNstanceMachine("m"), "i-1")))
	if requeue := h.Expect(deleteOnA, applyStatusM); requeue != time.Second {
		t.Errorf("repeats it in %s", requeue)
	}
	h.expectReady("False Deleting: the shard is deleting the instance")
	for _, delay := range []time.Duration{2, 4, 8, 10, 10} {
		if requeue := h.Expect(); requeue <= 0 || requeue > 10*time.Second {
			t.Errorf("syncs again in %s", requeue)
		}
		h.Advance(10 * time.Second)
		if requeue := h.Expect(deleteOnA); requeue != delay*time.Second {
			t.Errorf("repeats it in %s, want %ds", requeue, delay)
		}
	}
	h.Advance(10 * time.Second)
	h.shardA().Deleted = true
	h.Expect(deleteOnA, patchM)
	if h.nstanceMachine("m") != nil {
		t.Error("it is still there")
	}
	h.Expect()
	if len(h.controller.syncStates) != 0 {
		t.Error("its state was not dropped")
	}
}

func TestDeletionIsConfirmedByANotice(t *testing.T) {
	h := newHarness(t, newShards("a"), deleting(running(newNstanceMachine("m"), "i-1")))
	h.Expect(deleteOnA, applyStatusM)
	h.shardA().Notices["i-1"] = shard.DeletionNotice{State: shard.Deleting}
	h.Expect()
	h.shardA().Notices["i-1"] = shard.DeletionNotice{State: shard.Deleted}
	h.Expect(patchM)
}

func TestDeletionBeforeTheCreateRequest(t *testing.T) {
	h := newHarness(t, newShards(), deleting(withFinalizer(newNstanceMachine("m"))))
	h.Expect(patchM)

	// The finalizer of another controller stays.
	machine := deleting(newNstanceMachine("m"))
	machine.Finalizers = []string{"example.com/other"}
	h = newHarness(t, newShards("a"), machine)
	h.Expect()

	machine = deleting(withFinalizer(newNstanceMachine("m")))
	machine.Finalizers = []string{"example.com/other", v1beta1.FinalizerMachine}
	h = newHarness(t, newShards("a"), machine)
	h.Expect(patchM)
	if got := h.nstanceMachine("m").Finalizers; !slices.Equal(got, []string{"example.com/other"}) {
		t.Errorf("the finalizers are %q", got)
	}
	h.Expect()
}

// The process that sent the request may have crashed before the reply.
func TestDeletionAfterACreateRequestWithoutAReply(t *testing.T) {
	h := newHarness(t, newShards("a"), withShard(newNstanceMachine("m")))
	h.Fake.OnCreate = func(string, string) {
		// The shard had created the instance.
		h.shardA().Instances["i-7"] = shard.Instance{ID: "i-7"}
		h.shardA().Requests["uid-of-m"] = "i-7"
	}
	h.change(func(m *v1beta1.NstanceMachine) { deleting(m) })
	h.Expect(createOnA, applyStatusM)
	h.expectReady("False Deleting: the shard is deleting the instance")
	h.shardA().Deleted = true
	h.Expect("delete i-7 on a", patchM)
	if h.nstanceMachine("m") != nil {
		t.Error("it is still there")
	}
}

func TestDeletionAfterARejectedCreateRequest(t *testing.T) {
	h := newHarness(t, newShards("a"), deleting(withShard(newNstanceMachine("m"))))
	h.Fake.Fail["create"] = declined
	h.Expect(createOnA, patchM)
	if h.nstanceMachine("m") != nil {
		t.Error("it is still there")
	}
}

// Without a confirmation of the shard the finalizer stays.
func TestDeletionWithoutAReply(t *testing.T) {
	failures := []error{
		shardtest.Unavailable,
		status.Error(codes.PermissionDenied, "not yours"),
		// The connection broke during a call that may have had its effect.
		status.Error(codes.Internal, "stream terminated by RST_STREAM"),
		status.Error(codes.DeadlineExceeded, "no reply"),
	}
	for name, machine := range map[string]func() *v1beta1.NstanceMachine{
		"of an instance":                func() *v1beta1.NstanceMachine { return deleting(running(newNstanceMachine("m"), "i-1")) },
		"after a request without reply": func() *v1beta1.NstanceMachine { return deleting(withShard(newNstanceMachine("m"))) },
		"before the instance ran":       func() *v1beta1.NstanceMachine { return deleting(withInstance(newNstanceMachine("m"), "i-1")) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newShards("a"), machine())
			for _, failure := range failures {
				h.Fake.Fail["create"], h.Fake.Fail["delete"] = failure, failure
				for range 2 {
					if _, _, err := h.Sync(); err == nil {
						t.Fatalf("%v: got no error, want backoff", failure)
					}
				}
				h.expectReady(notDeleted + shard.Message(failure))
			}
			h.shardA().Reachable, h.shardA().Lost = false, shardtest.Unavailable
			h.Expect(applyStatusM)
			h.expectReady(notDeleted + "connection refused")
			h.shardA().Lost = nil
			h.Expect(applyStatusM)
			h.expectReady(notDeleted + "the shard is being connected")
			delete(h.Fake.ByID, "a")
			h.Expect(applyStatusM)
			id := cmp.Or(h.nstanceMachine("m").Status.InstanceID, "unknown")
			h.expectReady(notDeleted + `shard "a" is not configured; if the shard is lost, the annotation nstance.dev/abandoned-shard=a/` + id + " gives up the instance")
			if requeue := h.Expect(); requeue != 0 {
				t.Errorf("syncs again in %s, want no delay", requeue)
			}
			if !hasFinalizer(h.nstanceMachine("m")) {
				t.Error("the finalizer was removed")
			}
		})
	}
}

// A cache from before the create request does not show that there is an instance.
func TestDeletionFromAStaleCache(t *testing.T) {
	h := newHarness(t, newShards("a"), withFinalizer(newNstanceMachine("m")))
	h.change(func(m *v1beta1.NstanceMachine) { deleting(m) })
	h.Show()
	h.change(func(m *v1beta1.NstanceMachine) {
		withShard(m)
		m.ResourceVersion = "99"
	})
	if did, _, err := h.SyncStale(); !apierrors.IsConflict(err) {
		t.Errorf("did %q, error %v, want a conflict", did, err)
	}
	if !hasFinalizer(h.nstanceMachine("m")) {
		t.Error("the finalizer was removed")
	}
}

func TestAnNstanceMachineWhoseMachineWasDeleted(t *testing.T) {
	t.Run("is deleted", func(t *testing.T) {
		h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
		h.hideMachine()
		h.Expect(deleteM)
		h.Expect(deleteOnA, applyStatusM)
	})
	t.Run("is deleted when another Machine has the name", func(t *testing.T) {
		h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
		another := newMachine("m")
		another.UID = types.UID("another")
		h.Put(h.Informers.Machines, another)
		h.CAPI.Has(h.T, another)
		h.Expect(deleteM)
	})
	t.Run("stays when only the cache does not have the Machine", func(t *testing.T) {
		h := newHarness(t, newShards("a"), newNstanceMachine("m"))
		h.hideMachine()
		h.CAPI.Has(h.T, newMachine("m"))
		h.Expect(applyM, applyStatusM)
		h.Expect(createOnA, applyStatusM)
	})
}

func TestAMachineIsDeletedOnceWhileTheCacheIsStale(t *testing.T) {
	h := newHarness(t, newShards("a"), withServerDeleted(running(newNstanceMachine("m"), "i-1")))
	_, _, err := h.Sync()
	require.NoError(t, err)
	deleted := 1
	for range 10 {
		did, _, err := h.Sync()
		require.NoError(t, err)
		deleted += len(did)
	}
	assert.Equal(t, 1, deleted, "deletions")
	// The deletion is repeated after a time in which the cache should have shown it.
	h.Advance(time.Minute)
	did, _, err := h.Sync()
	require.NoError(t, err)
	assert.Len(t, did, 1)
}

func TestAnNstanceMachineIsDeletedOnceWhileTheCacheIsStale(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
	h.hideMachine()
	h.Show()
	deleted := 0
	for range 10 {
		did, _, err := h.SyncStale()
		require.NoError(t, err)
		deleted += len(did)
	}
	assert.Equal(t, 1, deleted, "deletions")
}
