// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

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

	// Errors of other instances and of the group are not its own.
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

	// It does not count for another state of the instance.
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
