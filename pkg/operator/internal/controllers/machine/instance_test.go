// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

func TestAFailedInstance(t *testing.T) {
	for _, state := range []shard.InstanceState{shard.InstanceStopped, shard.InstanceFailed} {
		h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
		h.shardA().Session = 1
		h.shardA().Instances["i-1"] = shard.Instance{ID: "i-1", State: state, ProviderID: "provider-i-1"}
		if requeue := h.Expect(getOnA, applyStatusM); requeue != time.Second {
			t.Errorf("queries again in %s", requeue)
		}
		h.expectReady("False InstanceFailed: instance i-1 is " + string(state))
		got := h.nstanceMachine("m").Status
		if ptr.Deref(got.Ready, true) || !ptr.Deref(got.Initialization.Provisioned, false) {
			t.Errorf("the status is %+v", got)
		}
		h.Advance(time.Minute)
		h.Expect(getOnA)
		if got, want := h.Events(), []string{"Warning InstanceFailed instance i-1 is " + string(state)}; !slices.Equal(got, want) {
			t.Errorf("recorded %q, want %q", got, want)
		}
		h.Advance(time.Minute)
		h.runInstance()
		h.Expect(getOnA, applyStatusM)
		h.expectReady("True Ready: ")
	}
}

// A notice is sent once per watch, so an instance is queried once per watch.
func TestInstancesAreVerifiedOncePerSession(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
	h.runInstance()
	h.Expect()
	for session := range int64(3) {
		h.shardA().Session = session + 1
		h.Expect(getOnA)
		h.Expect()
	}
	// Without a reply the instance is not verified.
	h.shardA().Session++
	h.Fake.Fail["get"] = shardtest.Unavailable
	for range 2 {
		if did, _, err := h.Sync(); !slices.Equal(did, []string{getOnA}) || !shard.IsUnreachable(err) {
			t.Errorf("did %q, error %v", did, err)
		}
	}
	h.expectReady("True Ready: ")
	h.Fake.Fail["get"] = nil
	h.Expect(getOnA)
	h.restart()
	h.Expect(getOnA)
	h.Expect()
}

func TestAnInstanceThatTheShardHasDeleted(t *testing.T) {
	const deleteMachine = `DELETE machines/m {"kind":"DeleteOptions","apiVersion":"cluster.x-k8s.io/v1beta2","preconditions":{"uid":"uid-of-machine-m"}}`
	for name, test := range map[string]struct {
		change  func(*harness)
		calls   []string
		message string
	}{
		"by a notice": {func(h *harness) {
			h.shardA().Notices["i-1"] = shard.DeletionNotice{InstanceID: "i-1", State: shard.Deleted, Reason: "spot"}
		}, nil, "spot"},
		"by a notice without a reason": {func(h *harness) {
			h.shardA().Notices["i-1"] = shard.DeletionNotice{InstanceID: "i-1", State: shard.Deleted}
		}, nil, "the shard has deleted the instance"},
		"while there was no watch": {func(h *harness) {
			delete(h.shardA().Instances, "i-1")
			h.shardA().Session++
		}, []string{getOnA}, "the shard does not have the instance any more"},
		"and still lists": {func(h *harness) {
			h.shardA().Instances["i-1"] = shard.Instance{ID: "i-1", State: shard.InstanceTerminated}
			h.shardA().Session++
		}, []string{getOnA}, "the shard has deleted the instance"},
	} {
		for stage, nstanceMachine := range map[string]func() *v1beta1.NstanceMachine{
			"before it ran": func() *v1beta1.NstanceMachine { return withInstance(newNstanceMachine("m"), "i-1") },
			"when it ran":   func() *v1beta1.NstanceMachine { return running(newNstanceMachine("m"), "i-1") },
		} {
			t.Run(name+", "+stage, func(t *testing.T) {
				h := newHarness(t, newShards("a"), nstanceMachine())
				h.runInstance()
				test.change(h)
				h.Expect(slices.Concat(test.calls, []string{applyStatusM})...)
				h.expectCondition(v1beta1.ConditionServerDeleted, "True ServerDeleted: "+test.message)
				h.expectReady("False ServerDeleted: " + test.message)
				if ptr.Deref(h.nstanceMachine("m").Status.Ready, true) {
					t.Error("it is ready")
				}
				// The Machine is deleted, and Cluster API deletes the NstanceMachine.
				h.Expect(deleteMachine)
				owner := newMachine("m")
				owner.DeletionTimestamp = ptr.To(metav1.NewTime(h.FakeClock.Now()))
				h.Put(h.Informers.Machines, owner)
				h.Expect()
				h.change(func(m *v1beta1.NstanceMachine) { deleting(m) })
				h.Expect(patchM)
				if h.nstanceMachine("m") != nil {
					t.Error("it is still there")
				}
				h.ExpectEvents("Warning ServerDeleted "+test.message, "Normal DeletingMachine the shard has deleted its instance")
			})
		}
	}
}

func TestTheMachineOfADeletedInstanceMayBeMissing(t *testing.T) {
	t.Run("on the API server only", func(t *testing.T) {
		h := newHarness(t, newShards("a"), withServerDeleted(running(newNstanceMachine("m"), "i-1")))
		h.CAPI.Refused = apierrors.NewNotFound(schema.GroupResource{}, "m")
		if did, _, err := h.Sync(); err != nil || !strings.HasPrefix(did[len(did)-1], "DELETE machines/m ") {
			t.Errorf("did %q, error %v", did, err)
		}
	})
	t.Run("and another Machine has its name", func(t *testing.T) {
		h := newHarness(t, newShards("a"), withServerDeleted(running(newNstanceMachine("m"), "i-1")))
		h.CAPI.Refused = apierrors.NewConflict(schema.GroupResource{}, "m", nil)
		if _, _, err := h.Sync(); !apierrors.IsConflict(err) {
			t.Errorf("got error %v, want a retry with a newer cache", err)
		}
	})
	t.Run("in the cache too", func(t *testing.T) {
		h := newHarness(t, newShards("a"), withServerDeleted(running(newNstanceMachine("m"), "i-1")))
		h.hideMachine()
		h.Expect(deleteM)
		h.Expect(patchM)
		if h.nstanceMachine("m") != nil {
			t.Error("it is still there")
		}
	})
	t.Run("in the owner references too", func(t *testing.T) {
		machine := withServerDeleted(running(newNstanceMachine("m"), "i-1"))
		machine.OwnerReferences = nil
		h := newHarness(t, newShards("a"), machine)
		h.Expect(deleteM)
		h.Expect(patchM)
	})
}

// A shard that is deleting an instance, or is disconnected, has not deleted it.
func TestOnlyADeletedInstanceCountsAsDeleted(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
	h.shardA().Notices["i-1"] = shard.DeletionNotice{State: shard.Draining, Reason: "spot"}
	h.Expect()
	h.shardA().Notices["i-1"] = shard.DeletionNotice{State: shard.Deleting, Reason: "spot"}
	h.Expect(applyStatusM)
	h.expectReady("False ServerDeleted: the shard is deleting the instance: spot")
	h.expectCondition(v1beta1.ConditionServerDeleted, "")

	h = newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
	h.shardA().Session = 1
	h.shardA().Reachable, h.shardA().Lost = false, shardtest.Unavailable
	h.Expect()
	delete(h.Fake.ByID, "a")
	h.Expect()
}

func TestTheConditionOfDrainsAppearsWithTheFirstDrain(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
	h.Expect()
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
		h.drains.drain = test.drain
		h.Expect(applyStatusM)
		h.expectCondition(v1beta1.ConditionDrainsProgressing, test.want)
		h.expectReady("True Ready: ")
	}
}

const outOfStock = "create instance i-1: no capacity for large"

func (h *harness) reportError(instance string) {
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: instance, Message: outOfStock})
}

func TestAProviderErrorIsReported(t *testing.T) {
	h := newHarness(t, newShards("a"), withInstance(newNstanceMachine("m"), "i-1"))
	h.shardA().Instances["i-1"] = shard.Instance{ID: "i-1", State: shard.InstancePending}
	h.Expect(getOnA, applyStatusM)
	h.expectReady("False Provisioning: instance i-1 is pending")
	h.Events()

	// Errors of other instances and of the group are ignored.
	for _, other := range []string{"", "i-2"} {
		h.reportError(other)
	}
	h.Expect()

	// The error is reported before the next query.
	h.reportError("i-1")
	h.Expect(applyStatusM)
	h.expectReady("False ProviderError: " + outOfStock)
	assert.Equal(t, []string{"Warning ProviderError " + outOfStock}, h.Events())
	h.reportError("i-1")
	h.Expect()
	h.Advance(queryBackoff.Cap)
	h.Expect(getOnA)
	h.expectReady("False ProviderError: " + outOfStock)
	h.ExpectEvents()

	h.runInstance()
	h.Advance(queryBackoff.Cap)
	h.Expect(getOnA, applyM, applyStatusM)
	h.expectReady("True Ready: ")

	// In another state of the instance the error does not count.
	h.shardA().Session++
	h.shardA().Instances["i-1"] = shard.Instance{ID: "i-1", State: shard.InstancePending}
	h.Expect(getOnA, applyStatusM)
	h.expectReady("False Provisioning: instance i-1 is pending")
}

func TestAProviderErrorOfARunningInstanceIsDropped(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
	h.runInstance()
	h.reportError("i-1")
	h.Expect()
	h.expectReady("True Ready: ")
	h.ExpectEvents()
}

func TestAProviderErrorOfADeletionIsReported(t *testing.T) {
	h := newHarness(t, newShards("a"), deleting(running(newNstanceMachine("m"), "i-1")))
	h.shardA().Instances["i-1"] = shard.Instance{ID: "i-1", State: shard.InstanceTerminating}
	h.Expect(deleteOnA, applyStatusM)
	h.expectReady("False Deleting: the shard is deleting the instance")
	h.reportError("i-1")
	h.Expect(applyStatusM)
	h.expectReady("False Deleting: the shard is deleting the instance: " + outOfStock)
}

// A list of the shard that shows the same pending instance is not a reason for a sync.
func TestAPoolMemberWithAProviderErrorIsUpToDate(t *testing.T) {
	h := newHarness(t, newShards("a"), newPoolMember("m"))
	pending := listed(shard.InstancePending)
	pending.ProviderID = ""
	h.list(pending)
	h.reportError("m")
	h.Expect(applyStatusM)
	h.expectReady("False ProviderError: " + outOfStock)
	if !upToDate(h.nstanceMachine("m"), &pending, false) {
		t.Error("it is not up to date")
	}
	if running := listed(shard.InstanceRunning); upToDate(h.nstanceMachine("m"), &running, false) {
		t.Error("it is up to date with a running instance")
	}
}

func TestAProviderErrorEnqueuesTheNstanceMachine(t *testing.T) {
	h := newHarness(t, newShards("a"), withInstance(newNstanceMachine("m"), "i-1"))
	h.API.Show(h.Informers.Nstance)
	got := controllertest.Enqueued(t, &h.controller.queue, func() {
		h.reportError("i-1")
		h.reportError("i-2")
	})
	assert.Equal(t, []string{"m at 1s"}, got)
}
