// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// A DaemonSet has a Pod for every machine, also for each that would be created for one of
// its Pods.
func TestPodsOfDaemonSetsAndStaticPodsGetNoMachine(t *testing.T) {
	for name, test := range map[string]struct {
		owner *metav1.OwnerReference
		want  []string
		event string
	}{
		"a DaemonSet": {
			owner: &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "logs", UID: "1", Controller: ptr.To(true)},
			event: `Warning InvalidAnnotation annotation on-demand.nstance.dev/group: a Pod of DaemonSet "logs" gets no machine, because each new machine would get another Pod`,
		},
		"a Node": {
			owner: &metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "worker-1", UID: "1", Controller: ptr.To(true)},
			event: `Warning InvalidAnnotation annotation on-demand.nstance.dev/group: a static Pod of Node "worker-1" gets no machine, because it runs on that Node`,
		},
		"a Job": {
			owner: &metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "build", UID: "1", Controller: ptr.To(true)},
			want:  []string{createsNstanceMachine, createsMachine},
		},
		"an owner that is not the controller": {
			owner: &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "logs", UID: "1"},
			want:  []string{createsNstanceMachine, createsMachine},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod("requesting", "gpu")
			pod.OwnerReferences = []metav1.OwnerReference{*test.owner}
			h := newHarness(t, 0, newShards("gpu"), pod)
			h.expect(pod, test.want...)
			h.expect(pod)
			if test.event == "" {
				h.ExpectEvents()
			} else {
				h.ExpectEvents(test.event)
			}
		})
	}
}

// A machine that is created for a Pod that has a Node would never get the Pod.
func TestABoundPodGetsNoMachine(t *testing.T) {
	pod := newPod("requesting", "gpu")
	pod.Spec.NodeName = "worker-1"
	other := newPod("waiting", "gpu")
	h := newHarness(t, 1, newShards("gpu"), pod, other)
	h.expect(pod)
	h.ExpectEvents("Normal AlreadyBound the Pod is bound to a Node already, and gets no other machine")

	// It is remembered: a Pod is never unbound, and every change of a group syncs the
	// Pods that have no machine.
	lists := len(h.lists)
	h.expect(pod)
	h.expect(pod)
	if len(h.lists) != lists {
		t.Errorf("read the Pod again: %q", h.lists[lists:])
	}
	h.ExpectEvents()

	// It does not count for the limit.
	h.expect(other, createsNstanceMachine, createsMachine)
}

func TestAPodThatIsBoundWhileItsPairIsCreatedGetsAWholePair(t *testing.T) {
	pod := newPod("requesting", "gpu")
	h := newHarness(t, 0, newShards("gpu"), pod)
	h.store("nstancemachines", newNstanceMachine(pod))
	pod.Spec.NodeName = "worker-1"
	h.putPod(pod)
	h.expect(pod, createsMachine)
}

func TestAPodThatExistsInTheCacheOnlyGetsNoMachine(t *testing.T) {
	pod := newPod("requesting", "gpu")
	h := newHarness(t, 0, newShards("gpu"), pod)
	h.dropPod(pod)
	if writes, _, err := h.sync(pod.UID); err != nil || len(writes) > 0 {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	h.ExpectEvents()
}

func TestAMachineIsNotCreatedBlindly(t *testing.T) {
	pod := newPod("requesting", "gpu")
	h := newHarness(t, 0, newShards("gpu"), pod)
	h.podFailure = apierrors.NewServiceUnavailable("later")
	if writes, _, err := h.sync(pod.UID); err == nil || len(writes) > 0 {
		t.Errorf("wrote %q, error %v", writes, err)
	}
}

func TestTheCacheKeepsTheControllerThatExcludesAPod(t *testing.T) {
	pod := newPod("requesting", "gpu")
	pod.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "config", UID: "2"},
		{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "logs", UID: "1", Controller: ptr.To(true)},
	}
	if kept := inCache(pod); len(kept.OwnerReferences) != 1 || kept.OwnerReferences[0].Kind != "DaemonSet" {
		t.Errorf("kept %v", kept.OwnerReferences)
	}
	pod.OwnerReferences[1].Kind = "ReplicaSet"
	if kept := inCache(pod); len(kept.OwnerReferences) != 0 {
		t.Errorf("kept %v of a Pod that may have a machine", kept.OwnerReferences)
	}
}
