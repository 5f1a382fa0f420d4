// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

func TestDeletionEndsTheInstance(t *testing.T) {
	h := newHarness(t, newShards("a"), deleting(running(newMachine("m"), "i-1")))
	if requeue := h.expect(deleteOnA, applyStatusM); requeue != time.Second {
		t.Errorf("asks again in %s", requeue)
	}
	h.expectReady("False Deleting: the shard is ending the instance")
	for _, delay := range []time.Duration{2, 4, 8, 10, 10} {
		if requeue := h.expect(); requeue <= 0 || requeue > 10*time.Second {
			t.Errorf("looks again in %s", requeue)
		}
		h.after(10 * time.Second)
		if requeue := h.expect(deleteOnA); requeue != delay*time.Second {
			t.Errorf("asks again in %s, want %ds", requeue, delay)
		}
	}
	h.after(10 * time.Second)
	h.shards.deleted = true
	h.expect(deleteOnA, patchM)
	if h.machine("m") != nil {
		t.Error("it is still there")
	}
	h.expect()
	if len(h.controller.memories) != 0 {
		t.Error("it is still remembered")
	}
}

func TestDeletionHearsOfTheEnd(t *testing.T) {
	h := newHarness(t, newShards("a"), deleting(running(newMachine("m"), "i-1")))
	h.expect(deleteOnA, applyStatusM)
	h.shards.notices["i-1"] = shard.Notice{State: shard.Deleting}
	h.expect()
	h.shards.notices["i-1"] = shard.Notice{State: shard.Deleted}
	h.expect(patchM)
}

func TestDeletionOfWhatWasNeverOrdered(t *testing.T) {
	h := newHarness(t, newShards(), deleting(holding(newMachine("m"))))
	h.expect(patchM)

	// What somebody else keeps is not ours to let go.
	machine := deleting(newMachine("m"))
	machine.Finalizers = []string{"example.com/other"}
	h = newHarness(t, newShards("a"), machine)
	h.expect()

	machine = deleting(holding(newMachine("m")))
	machine.Finalizers = []string{"example.com/other", v1beta1.FinalizerMachine}
	h = newHarness(t, newShards("a"), machine)
	h.expect(patchM)
	if got := h.machine("m").Finalizers; !slices.Equal(got, []string{"example.com/other"}) {
		t.Errorf("the finalizers are %q", got)
	}
	h.expect()
}

// The order may have been taken by a process that died before it had the answer.
func TestDeletionOfWhatWasPerhapsOrdered(t *testing.T) {
	h := newHarness(t, newShards("a"), claiming(newMachine("m")))
	h.shards.ordered = func(string, string) {
		// It was taken.
		h.shards.instances["i-7"] = &shard.Instance{ID: "i-7"}
		h.shards.requested["a/uid-of-m"] = "i-7"
	}
	h.change(func(m *v1beta1.NstanceMachine) { deleting(m) })
	h.expect(createOnA, applyStatusM)
	h.expectReady("False Deleting: the shard is ending the instance")
	h.shards.deleted = true
	h.expect("delete i-7 on a", patchM)
	if h.machine("m") != nil {
		t.Error("it is still there")
	}
}

func TestDeletionOfWhatTheShardRefuses(t *testing.T) {
	h := newHarness(t, newShards("a"), deleting(claiming(newMachine("m"))))
	h.shards.fail["create"] = refusing
	h.expect(createOnA, patchM)
	if h.machine("m") != nil {
		t.Error("it is still there")
	}
}

// The shard has not said that the instance is gone, so the machine stays.
func TestDeletionWithoutAnAnswer(t *testing.T) {
	calls := []error{
		unreachable,
		status.Error(codes.PermissionDenied, "not yours"),
		// Of a connection that broke under a call which may have had its effect.
		status.Error(codes.Internal, "stream terminated by RST_STREAM"),
		status.Error(codes.DeadlineExceeded, "no answer"),
	}
	for name, machine := range map[string]func() *v1beta1.NstanceMachine{
		"of an instance":               func() *v1beta1.NstanceMachine { return deleting(running(newMachine("m"), "i-1")) },
		"of what was perhaps ordered":  func() *v1beta1.NstanceMachine { return deleting(claiming(newMachine("m"))) },
		"of an instance never run yet": func() *v1beta1.NstanceMachine { return deleting(having(newMachine("m"), "i-1")) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newShards("a"), machine())
			for _, failure := range calls {
				h.shards.fail["create"], h.shards.fail["delete"] = failure, failure
				for range 2 {
					if _, _, err := h.sync(); err == nil {
						t.Fatalf("%v: got no error, want backoff", failure)
					}
				}
				h.expectReady(unconfirmed + shard.Message(failure))
			}
			h.shards.byID["a"].reachable, h.shards.byID["a"].lost = false, unreachable
			h.expect(applyStatusM)
			h.expectReady(unconfirmed + "connection refused")
			h.shards.byID["a"].lost = nil
			h.expect(applyStatusM)
			h.expectReady(unconfirmed + "the shard is being connected")
			delete(h.shards.byID, "a")
			h.expect(applyStatusM)
			h.expectReady(unconfirmed + `shard "a" is not configured`)
			if requeue := h.expect(); requeue != 0 {
				t.Errorf("looks again in %s, want to be woken", requeue)
			}
			if !held(h.machine("m")) {
				t.Error("it was let go")
			}
		})
	}
}

// A cache from before the order does not know that there is an instance.
func TestDeletionFromAStaleCache(t *testing.T) {
	h := newHarness(t, newShards("a"), holding(newMachine("m")))
	h.change(func(m *v1beta1.NstanceMachine) { deleting(m) })
	h.Show(h.informers)
	h.change(func(m *v1beta1.NstanceMachine) {
		claiming(m)
		m.ResourceVersion = "99"
	})
	if did, _, err := h.syncStale(); !apierrors.IsConflict(err) {
		t.Errorf("did %q, error %v, want a conflict", did, err)
	}
	if !held(h.machine("m")) {
		t.Error("it was let go")
	}
}

func TestAMachineWhoseMachineIsGone(t *testing.T) {
	t.Run("is deleted", func(t *testing.T) {
		h := newHarness(t, newShards("a"), running(newMachine("m"), "i-1"))
		h.hideOwner()
		h.expect(deleteM)
		h.expect(deleteOnA, applyStatusM)
	})
	t.Run("and replaced by another", func(t *testing.T) {
		h := newHarness(t, newShards("a"), running(newMachine("m"), "i-1"))
		another := newOwner("m")
		another.UID = types.UID("another")
		h.put(h.owners, another)
		h.live(another)
		h.expect(deleteM)
	})
	t.Run("from the cache only, stays", func(t *testing.T) {
		h := newHarness(t, newShards("a"), newMachine("m"))
		h.hideOwner()
		h.live(newOwner("m"))
		h.expect(applyMachineM, applyStatusM)
		h.expect(createOnA, applyStatusM)
	})
}
