// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// restored returns an NstanceMachine as a restore from a backup without the status creates it:
// with a new UID.
func restored(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	nstanceMachine.Status = v1beta1.NstanceMachineStatus{}
	nstanceMachine.UID = types.UID("new-" + string(nstanceMachine.UID))
	return nstanceMachine
}

func TestALostStatusIsRestored(t *testing.T) {
	h := newHarness(t, newShards("a", "b"), restored(running(newNstanceMachine("m"), "i-1")))
	h.runInstance()
	h.Expect(getOnA, applyStatusM)
	h.expectReady("True Ready: ")
	got := h.nstanceMachine("m").Status
	assert.Equal(t, []string{"a", "uid-of-m", "i-1", "provider-i-1"}, []string{got.Shard, got.RequestID, got.InstanceID, got.ProviderID})
	h.Expect()
	assert.Zero(t, h.requests())
}

// Before the instance runs, only the create request is in the annotations.
func TestALostStatusRepeatsTheCreateRequest(t *testing.T) {
	h := newHarness(t, newShards("a", "b"), withShard(newNstanceMachine("m")))
	h.Expect(createOnA, applyStatusM)
	h.change(func(m *v1beta1.NstanceMachine) { restored(m) })
	h.Expect(createOnA, applyStatusM)
	got := h.nstanceMachine("m").Status
	assert.Equal(t, []string{"a", "uid-of-m", "i-1"}, []string{got.Shard, got.RequestID, got.InstanceID})
	assert.Equal(t, 1, h.requests())
	assert.Len(t, h.shardA().Instances, 1)
}

// No one would delete a second instance.
func TestAnUnknownInstanceIsNeitherReplacedNorForgotten(t *testing.T) {
	bare := restored(running(newNstanceMachine("m"), "i-1"))
	bare.Annotations = nil
	h := newHarness(t, newShards("a"), bare)
	h.runInstance()
	const want = `False InstanceUnknown: spec.providerID is "provider-i-1", and neither the status nor annotation nstance.dev/request ` +
		"names the shard; set the annotations nstance.dev/request and nstance.dev/instance-id"
	h.Expect(applyStatusM)
	h.expectReady(want)
	h.change(func(m *v1beta1.NstanceMachine) { deleting(m) })
	h.Expect(applyStatusM)
	require.True(t, hasFinalizer(h.nstanceMachine("m")))
	assert.Zero(t, h.requests())

	// The administrator has found the instance.
	h.change(func(m *v1beta1.NstanceMachine) {
		m.Annotations = map[string]string{v1beta1.AnnotationRequest: "a/uid-of-m", v1beta1.AnnotationInstanceID: "i-1"}
	})
	h.Expect(deleteOnA, applyStatusM)
}

// Otherwise an annotation could make every write of the status fail.
func TestALongRequestIsNotRestored(t *testing.T) {
	for value, want := range map[string]bool{
		"a/uid-of-m":                             true,
		"a":                                      false,
		"/uid-of-m":                              false,
		strings.Repeat("a", maxShard+1) + "/uid": false,
		"a/" + strings.Repeat("u", maxRequest+1): false,
		"a/" + strings.Repeat("u", maxRequest):   true,
		strings.Repeat("a", maxShard) + "/uid":   true,
	} {
		m := newNstanceMachine("m")
		m.Annotations = map[string]string{v1beta1.AnnotationRequest: value}
		if _, _, ok := annotatedRequest(m); ok != want {
			t.Errorf("%q is restored %t, want %t", value, ok, want)
		}
	}
}

// An object that is created from the output of kubectl get -o yaml has the annotations of
// another object.
func TestACopyDoesNotGetTheInstance(t *testing.T) {
	original := running(newNstanceMachine("other"), "i-1")
	aCopy := restored(running(newNstanceMachine("m"), "i-1"))
	aCopy.Annotations = original.Annotations
	h := newHarness(t, newShards("a"), aCopy, original)
	h.runInstance()
	const want = `False InstanceUnknown: the instance of annotation nstance.dev/request is that of NstanceMachine "other"; ` +
		"without the annotation and spec.providerID, an instance is created"
	h.Expect(applyStatusM)
	h.expectReady(want)
	h.change(func(m *v1beta1.NstanceMachine) { m.Annotations, m.Spec.ProviderID = nil, "" })
	h.Expect(applyM, applyStatusM)
	h.Expect(createOnA, applyStatusM)
	assert.Equal(t, "new-uid-of-m", h.nstanceMachine("m").Status.RequestID)
}

func TestADeletedCopyKeepsTheInstance(t *testing.T) {
	original := running(newNstanceMachine("other"), "i-1")
	aCopy := deleting(restored(running(newNstanceMachine("m"), "i-1")))
	aCopy.Annotations = original.Annotations
	h := newHarness(t, newShards("a"), aCopy, original)
	h.runInstance()
	h.Expect(patchM)
	assert.Nil(t, h.nstanceMachine("m"))
}

// Otherwise every client that may change labels could cause a second instance.
func TestAPoolMemberWithoutItsLabelIsNoRequest(t *testing.T) {
	member := owned(newPoolMember("m"))
	member.Labels = nil
	h := newHarness(t, newShards("a", "b"), member)
	h.list(shard.Instance{ID: "m", State: shard.InstancePending})
	h.Expect(applyStatusM)
	h.expectReady("False Provisioning: instance m is pending")
	assert.Zero(t, h.requests(), "create requests")

	// The instance was deleted on its shard.
	h.change(func(m *v1beta1.NstanceMachine) { deleting(m) })
	h.Expect("delete m on a", applyStatusM)
}
