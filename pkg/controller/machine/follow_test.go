// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

func TestAnInstanceThatFailed(t *testing.T) {
	for _, state := range []shard.InstanceState{shard.InstanceStopped, shard.InstanceFailed} {
		h := newHarness(t, newShards("a"), running(newMachine("m"), "i-1"))
		h.shards.session = 1
		h.shards.instances["i-1"] = &shard.Instance{ID: "i-1", State: state, ProviderID: "provider-i-1"}
		if requeue := h.expect(askA, applyStatusM); requeue != time.Second {
			t.Errorf("asks again in %s", requeue)
		}
		h.expectReady("False InstanceFailed: instance i-1 is " + string(state))
		got := h.machine("m").Status
		if ptr.Deref(got.Ready, true) || !ptr.Deref(got.Initialization.Provisioned, false) {
			t.Errorf("the status is %+v", got)
		}
		h.after(time.Minute)
		h.expect(askA)
		if got, want := h.events(), []string{"Warning InstanceFailed instance i-1 is " + string(state)}; !slices.Equal(got, want) {
			t.Errorf("recorded %q, want %q", got, want)
		}
		h.after(time.Minute)
		h.shards.run()
		h.expect(askA, applyStatusM)
		h.expectReady("True Ready: ")
	}
}

// What a shard tells is told once, to those who watch. Who has not watched asks.
func TestInstancesAreVerifiedOncePerSession(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newMachine("m"), "i-1"))
	h.shards.run()
	h.expect()
	for session := range int64(3) {
		h.shards.session = session + 1
		h.expect(askA)
		h.expect()
	}
	// Without an answer it is not verified.
	h.shards.session++
	h.shards.fail["ask"] = unreachable
	for range 2 {
		if did, _, err := h.sync(); !slices.Equal(did, []string{askA}) || !shard.IsUnreachable(err) {
			t.Errorf("did %q, error %v", did, err)
		}
	}
	h.expectReady("True Ready: ")
	h.shards.fail["ask"] = nil
	h.expect(askA)
	h.restart(h.shards)
	h.expect(askA)
	h.expect()
}

func TestAnInstanceThatTheShardHasEnded(t *testing.T) {
	const removeOwner = `DELETE machines/m {"kind":"DeleteOptions","apiVersion":"cluster.x-k8s.io/v1beta2","preconditions":{"uid":"uid-of-owner-m"}}`
	for name, test := range map[string]struct {
		end     func(*harness)
		calls   []string
		message string
	}{
		"it says so": {func(h *harness) {
			h.shards.notices["i-1"] = shard.Notice{InstanceID: "i-1", State: shard.Deleted, Reason: "spot"}
		}, nil, "spot"},
		"it says so without a reason": {func(h *harness) {
			h.shards.notices["i-1"] = shard.Notice{InstanceID: "i-1", State: shard.Deleted}
		}, nil, "the shard has ended the instance"},
		"it said so when nobody listened": {func(h *harness) {
			delete(h.shards.instances, "i-1")
			h.shards.session++
		}, []string{askA}, "the shard no longer knows the instance"},
		"it remembers": {func(h *harness) {
			h.shards.instances["i-1"] = &shard.Instance{ID: "i-1", State: shard.InstanceTerminated}
			h.shards.session++
		}, []string{askA}, "the shard has ended the instance"},
	} {
		for stage, make := range map[string]func() *v1beta1.NstanceMachine{
			"before it ran": func() *v1beta1.NstanceMachine { return having(newMachine("m"), "i-1") },
			"when it ran":   func() *v1beta1.NstanceMachine { return running(newMachine("m"), "i-1") },
		} {
			t.Run(name+", "+stage, func(t *testing.T) {
				h := newHarness(t, newShards("a"), make())
				h.shards.run()
				test.end(h)
				h.expect(slices.Concat(test.calls, []string{applyStatusM})...)
				h.expectCondition(v1beta1.ConditionServerDeleted, "True ServerDeleted: "+test.message)
				h.expectReady("False ServerDeleted: " + test.message)
				if ptr.Deref(h.machine("m").Status.Ready, true) {
					t.Error("it is ready")
				}
				// The Machine goes, and takes the machine with it.
				h.expect(removeOwner)
				owner := newOwner("m")
				owner.DeletionTimestamp = ptr.To(metav1.NewTime(h.clock.Now()))
				h.put(h.owners, owner)
				h.expect()
				h.change(func(m *v1beta1.NstanceMachine) { deleting(m) })
				h.expect(patchM)
				if h.machine("m") != nil {
					t.Error("it is still there")
				}
				if got, want := h.events(), []string{"Warning ServerDeleted " + test.message}; !slices.Equal(got, want) {
					t.Errorf("recorded %q, want %q", got, want)
				}
			})
		}
	}
}

func TestTheMachineOfAnEndedInstanceMayBeGone(t *testing.T) {
	t.Run("after the cache was read", func(t *testing.T) {
		h := newHarness(t, newShards("a"), endedByServer(running(newMachine("m"), "i-1")))
		h.capi.Refused = apierrors.NewNotFound(schema.GroupResource{}, "m")
		if did, _, err := h.sync(); err != nil || !strings.HasPrefix(did[len(did)-1], "DELETE machines/m ") {
			t.Errorf("did %q, error %v", did, err)
		}
	})
	t.Run("and another has its name", func(t *testing.T) {
		h := newHarness(t, newShards("a"), endedByServer(running(newMachine("m"), "i-1")))
		h.capi.Refused = apierrors.NewConflict(schema.GroupResource{}, "m", nil)
		if _, _, err := h.sync(); !apierrors.IsConflict(err) {
			t.Errorf("got error %v, want another try with a new cache", err)
		}
	})
	t.Run("long since", func(t *testing.T) {
		h := newHarness(t, newShards("a"), endedByServer(running(newMachine("m"), "i-1")))
		h.hideOwner()
		h.expect(deleteM)
		h.expect(patchM)
		if h.machine("m") != nil {
			t.Error("it is still there")
		}
	})
	t.Run("as if it had never been", func(t *testing.T) {
		machine := endedByServer(running(newMachine("m"), "i-1"))
		machine.OwnerReferences = nil
		h := newHarness(t, newShards("a"), machine)
		h.expect(deleteM)
		h.expect(patchM)
	})
}

// A shard that is about to end an instance, or that is away, has not ended it.
func TestOnlyTheEndIsTheEnd(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newMachine("m"), "i-1"))
	h.shards.notices["i-1"] = shard.Notice{State: shard.Draining, Reason: "spot"}
	h.expect()
	h.shards.notices["i-1"] = shard.Notice{State: shard.Deleting, Reason: "spot"}
	h.expect(applyStatusM)
	h.expectReady("False ServerDeleted: the shard is ending the instance: spot")
	h.expectCondition(v1beta1.ConditionServerDeleted, "")

	h = newHarness(t, newShards("a"), running(newMachine("m"), "i-1"))
	h.shards.session = 1
	h.shards.byID["a"].reachable, h.shards.byID["a"].lost = false, unreachable
	h.expect()
	delete(h.shards.byID, "a")
	h.expect()
}

func TestADrainIsVisibleOnceThereWasOne(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newMachine("m"), "i-1"))
	h.expect()
	h.expectCondition(v1beta1.ConditionDrainsProgressing, "")
	for _, test := range []struct {
		drain drain
		want  string
	}{
		{drain{running: true}, "True Draining: "},
		{drain{running: true, blocked: true, message: "node n: Pod p: PodDisruptionBudget b"}, "False DrainBlocked: node n: Pod p: PodDisruptionBudget b"},
		{drain{running: true}, "True Draining: "},
		{drain{}, "True NoDrains: "},
	} {
		h.shards.drains = test.drain
		h.expect(applyStatusM)
		h.expectCondition(v1beta1.ConditionDrainsProgressing, test.want)
		h.expectReady("True Ready: ")
	}
}
