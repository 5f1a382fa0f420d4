// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

const deletesMachine = "delete machines {}"

// withPair returns a harness with a Pod and its machine.
func withPair(t *testing.T, pod *corev1.Pod) *harness {
	t.Helper()
	h := newHarness(t, 0, newShards("gpu"), pod)
	h.expect(pod, createsNstanceMachine, createsMachine)
	return h
}

func TestSyncDeletesTheMachineOfADeletedPod(t *testing.T) {
	tests := map[string]func(h *harness, pod *corev1.Pod){
		"deleted": func(h *harness, pod *corev1.Pod) { h.dropPod(pod) },
		"succeeded": func(h *harness, pod *corev1.Pod) {
			pod.Status.Phase = corev1.PodSucceeded
			h.putPod(pod)
		},
		"failed": func(h *harness, pod *corev1.Pod) {
			pod.Status.Phase = corev1.PodFailed
			h.putPod(pod)
		},
		"created again with the same name": func(h *harness, pod *corev1.Pod) {
			h.dropPod(pod)
			pod = pod.DeepCopy()
			pod.UID = "pod-recreated"
			h.putPod(pod)
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			pod := newPod("requesting", "gpu")
			h := withPair(t, pod)
			h.store("machines", deletable(stored[clusterv1.Machine](h, "machines", pod)))
			change(h, pod)
			h.expect(pod, deletesMachine)
			h.ExpectEvents("Normal DeletingMachine its Pod team/requesting was deleted or has finished")
			// Cluster API continues the deletion.
			h.expect(pod)
			h.remove("nstancemachines", pod)
			h.expect(pod)
			h.remove("machines", pod)
			h.expect(pod)
			h.ExpectEvents()
		})
	}
}

// deletable gives a Machine a finalizer, so that its deletion takes time.
func deletable(machine *clusterv1.Machine) *clusterv1.Machine {
	machine.Finalizers = []string{clusterv1.MachineFinalizer}
	return machine
}

func TestAPodOfTheSameNameGetsAMachineOfItsOwn(t *testing.T) {
	first := newPod("requesting", "gpu")
	h := withPair(t, first)
	h.dropPod(first)
	second := newPod("requesting", "gpu")
	second.UID = "pod-recreated"
	h.putPod(second)
	h.expect(second, createsNstanceMachine, createsMachine)
	h.expect(first, deletesMachine)
	if got, want := h.names("machines"), []string{"on-demand-pod-recreated"}; !slices.Equal(got, want) {
		t.Errorf("there are the Machines %q, want %q", got, want)
	}
}

func TestSyncKeepsTheMachineOfAPodThatIsBeingDeleted(t *testing.T) {
	pod := newPod("requesting", "gpu")
	h := withPair(t, pod)
	h.putPod(controllertest.Deleting(pod))
	h.expect(pod)
	// The Pod gets no other machine in the meantime.
	h.remove("machines", pod)
	h.remove("nstancemachines", pod)
	h.expect(pod)
	h.ExpectEvents()
}

func TestSyncKeepsTheMachineOfAPodThatDoesNotRequestItAnyMore(t *testing.T) {
	pod := newPod("requesting", "gpu")
	h := withPair(t, pod)
	pod.Annotations = nil
	h.putPod(pod)
	h.show()
	for range 2 {
		if writes, requeue, err := h.sync(pod.UID); err != nil || len(writes) > 0 || requeue != existingPodRetry {
			t.Errorf("wrote %q, requeue %s, error %v", writes, requeue, err)
		}
	}
	h.dropPod(pod)
	h.expect(pod, deletesMachine)
}

func TestSyncDeletesNothingOnPartialInformation(t *testing.T) {
	pod := newPod("requesting", "gpu")
	h := withPair(t, pod)
	h.show()

	// The cache does not have the Pod.
	require.NoError(h.T, h.Informers.Pods.GetIndexer().Replace(nil, "1"))
	if writes, _, err := h.sync(pod.UID); err != nil || len(writes) > 0 {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	// If the cache is not complete, the API server is not queried.
	h.dropPod(pod)
	lists := len(h.lists)
	h.controller.podsSynced = func() bool { return false }
	h.expect(pod)
	if len(h.lists) != lists {
		t.Errorf("queried with %q", h.lists[lists:])
	}
	h.controller.podsSynced = func() bool { return true }

	// The API server does not respond.
	h.podFailure = apierrors.NewServiceUnavailable("later")
	h.show()
	if writes, _, err := h.sync(pod.UID); !apierrors.IsServiceUnavailable(err) || len(writes) > 0 {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	h.podFailure = nil

	// The Pod of the machine is not known.
	machine := stored[clusterv1.Machine](h, "machines", pod)
	machine.Annotations = nil
	h.store("machines", machine)
	h.show()
	if writes, requeue, err := h.sync(pod.UID); err != nil || len(writes) > 0 || requeue != existingPodRetry {
		t.Errorf("wrote %q, requeue %s, error %v", writes, requeue, err)
	}
}

func TestSyncDeletesAnIncompletePair(t *testing.T) {
	pod := newPod("requesting", "gpu")
	h := newHarness(t, 0, newShards("gpu"))
	h.store("nstancemachines", newNstanceMachine(pod))
	h.expect(pod, "delete nstancemachines {}")
	h.expect(pod)
}

// A Machine that is not in the cache yet is deleted instead of the NstanceMachine: otherwise
// its Node would be deleted without a drain.
func TestSyncDeletesTheMachineFirst(t *testing.T) {
	pod := newPod("requesting", "gpu")
	h := newHarness(t, 0, newShards("gpu"))
	h.store("nstancemachines", newNstanceMachine(pod))
	h.store("machines", deletable(newMachine(pod)))
	h.show()
	require.NoError(h.T, h.Informers.Machines.GetIndexer().Delete(newMachine(pod)))
	want := []string{"delete machines on-demand-pod-requesting"}
	if writes, _, err := h.sync(pod.UID); err != nil || !slices.Equal(writes, want) {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	if writes, _, err := h.sync(pod.UID); err != nil || len(writes) > 0 {
		t.Errorf("wrote %q again, error %v", writes, err)
	}
}

func TestSyncDeletesOnlyTheObjectThatItObserved(t *testing.T) {
	pod := newPod("requesting", "gpu")
	h := newHarness(t, 0, newShards("gpu"))
	h.store("nstancemachines", newNstanceMachine(pod))
	h.store("machines", newMachine(pod))
	h.show()
	other := newMachine(pod)
	other.UID = "uid-of-another"
	h.store("machines", other)
	if _, _, err := h.sync(pod.UID); !apierrors.IsConflict(err) {
		t.Errorf("got error %v", err)
	}
	stored[clusterv1.Machine](h, "machines", pod)
	stored[v1beta1.NstanceMachine](h, "nstancemachines", pod)
}

func TestRestartFindsMissedDeletions(t *testing.T) {
	deleted, done, staying := newPod("deleted", "gpu"), newPod("done", "gpu"), newPod("staying", "gpu")
	h := newHarness(t, 0, newShards("gpu"), deleted, done, staying)
	for _, pod := range []*corev1.Pod{deleted, done, staying} {
		h.expect(pod, createsNstanceMachine, createsMachine)
	}
	h.dropPod(deleted)
	done.Status.Phase = corev1.PodSucceeded
	h.putPod(done)
	h.start(0, newShards("gpu"))
	h.runFor(t, minute)
	if got, want := h.names("machines"), []string{"on-demand-pod-staying"}; !slices.Equal(got, want) {
		t.Errorf("there are the Machines %q, want %q", got, want)
	}
}

// A Pod was deleted while the Pods were not known, so that no event reports it. Its machine is
// deleted when the Pods are known.
func TestMachinesArePlannedWhenPodsAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod("deleted", "gpu")
		h := newHarness(t, 0, newShards("gpu"))
		h.store("nstancemachines", newNstanceMachine(pod))
		h.store("machines", newMachine(pod))
		h.show()
		var synced atomic.Bool
		h.controller.podsSynced = synced.Load
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), quiet(t)), time.Hour)
		defer cancel()
		go h.controller.Run(ctx)
		time.Sleep(time.Minute)
		if len(h.writes) > 0 {
			t.Errorf("wrote %q before the Pods are known", h.writes)
		}
		synced.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []string{"delete machines " + machineName(pod.UID)}; !slices.Equal(slices.Compact(h.writes), want) {
			t.Errorf("wrote %q, want %q", h.writes, want)
		}
	})
}
