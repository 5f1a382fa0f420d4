// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

func TestUnknownGroupIsRecordedOnce(t *testing.T) {
	var recorded rejections
	pod := types.UID("one")
	if !recorded.isNew(pod, *unknownGroup("a")) {
		t.Error("not recorded")
	}
	if recorded.isNew(pod, *unknownGroup("a")) {
		t.Error("recorded again")
	}
	if !recorded.isNew(pod, *unknownGroup("d")) {
		t.Error("another unknown group is not recorded")
	}
}

func withReady(machine *v1beta1.NstanceMachine, status metav1.ConditionStatus, reason, message string) *v1beta1.NstanceMachine {
	controller.SetCondition(&machine.Status.Conditions, 1, v1beta1.ConditionReady, status, reason, message)
	return machine
}

// The user who created a Pod sees its events, but may not be allowed to read NstanceMachines.
func TestThePodHasAnEventForAProblemOfItsMachine(t *testing.T) {
	for reason, reported := range map[string]bool{
		v1beta1.ReasonProviderError: true, v1beta1.ReasonInstanceRefused: true, v1beta1.ReasonNoShard: true,
		v1beta1.ReasonOutOfCapacity: true,
		v1beta1.ReasonProvisioning:  false, v1beta1.ReasonWaitingForMachine: false, v1beta1.ReasonDeleting: false,
	} {
		t.Run(reason, func(t *testing.T) {
			pod := newPod("requesting", "gpu")
			h := newHarness(t, 0, newShards("gpu"), pod)
			h.store("machines", newMachine(pod))
			h.store("nstancemachines", withReady(newNstanceMachine(pod), metav1.ConditionFalse, reason, "no capacity"))
			h.expect(pod)
			if !reported {
				h.ExpectEvents()
				return
			}
			want := "Warning " + reason + " machine on-demand-pod-requesting: no capacity"
			h.ExpectEvents(want)

			// The problem is recorded once, until the machine is ready.
			h.store("nstancemachines", withReady(newNstanceMachine(pod), metav1.ConditionFalse, reason, "still no capacity"))
			h.expect(pod)
			h.ExpectEvents()
			h.store("nstancemachines", withReady(newNstanceMachine(pod), metav1.ConditionTrue, v1beta1.ReasonReady, ""))
			h.expect(pod)
			h.ExpectEvents()
			assert.Empty(t, h.controller.rejections.last)
		})
	}
}

func TestAProblemOfAMachineEnqueuesItsPod(t *testing.T) {
	pod := newPod("requesting", "gpu")
	pending := withReady(newNstanceMachine(pod), metav1.ConditionFalse, v1beta1.ReasonProvisioning, "")
	failed := withReady(newNstanceMachine(pod), metav1.ConditionFalse, v1beta1.ReasonProviderError, "no capacity")
	again := withReady(newNstanceMachine(pod), metav1.ConditionFalse, v1beta1.ReasonProviderError, "still no capacity")
	failed.ResourceVersion, again.ResourceVersion = "2", "3"
	h := newHarness(t, 0, newShards("gpu"), pod)
	for name, test := range map[string]struct {
		before, after *v1beta1.NstanceMachine
		want          []string
	}{
		"the problem begins": {pending, failed, []string{"pod-requesting at 0s"}},
		"the problem ends":   {failed, pending, []string{"pod-requesting at 0s"}},
		"another message":    {failed, again, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.nstanceMachineChanged(test.before, test.after) })
			assert.Equal(t, test.want, got)
		})
	}
}
