// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// A sync depends on fields of the objects in these states of a Pod.
var dependent = map[string]struct {
	group                                         string
	store                                         func(h *harness, pod *corev1.Pod)
	onPod, onCluster, onMachine, onNstanceMachine bool
}{
	"the Pod has no machine": {group: "gpu", store: func(*harness, *corev1.Pod) {}, onPod: true, onCluster: true},
	"the Pod is rejected":    {group: "unknown", store: func(*harness, *corev1.Pod) {}, onPod: true, onCluster: true},
	"the Pod has a machine": {group: "gpu", store: func(h *harness, pod *corev1.Pod) {
		h.store("machines", newMachine(pod))
		h.store("nstancemachines", withReady(owned(newNstanceMachine(pod)), metav1.ConditionTrue, v1beta1.ReasonReady, ""))
	}, onMachine: true},
	"the machine has a problem": {group: "gpu", store: func(h *harness, pod *corev1.Pod) {
		h.store("machines", newMachine(pod))
		h.store("nstancemachines", withReady(owned(newNstanceMachine(pod)), metav1.ConditionFalse, v1beta1.ReasonProviderError, "no capacity"))
	}, onCluster: true, onMachine: true, onNstanceMachine: true},
	"the Machine was deleted": {group: "gpu", store: func(h *harness, pod *corev1.Pod) {
		h.store("nstancemachines", owned(newNstanceMachine(pod)))
	}, onNstanceMachine: true},
}

func TestHandlersSeeWhatASyncDependsOn(t *testing.T) {
	for name, state := range dependent {
		t.Run(name, func(t *testing.T) {
			pod := newPod("requesting", state.group)
			begin := func() *harness {
				h := newHarness(t, 0, newShards("gpu"), pod)
				state.store(h, pod)
				h.show()
				return h
			}
			h := begin()
			if state.onPod {
				expectSeen(t, begin, pod, inCache(pod), (*Controller).podChanged,
					func(h *harness) cache.SharedIndexInformer { return h.Informers.Pods })
			}
			if state.onCluster {
				expectSeen(t, begin, pod, controllertest.NewCluster(), (*Controller).clusterChanged,
					func(h *harness) cache.SharedIndexInformer { return h.Informers.Clusters })
			}
			if state.onMachine {
				expectSeen(t, begin, pod, stored[clusterv1.Machine](h, "machines", pod), (*Controller).machineChanged,
					func(h *harness) cache.SharedIndexInformer { return h.Informers.Machines })
			}
			if state.onNstanceMachine {
				expectSeen(t, begin, pod, stored[v1beta1.NstanceMachine](h, "nstancemachines", pod), (*Controller).nstanceMachineChanged,
					func(h *harness) cache.SharedIndexInformer { return h.Informers.Nstance.NstanceMachines().Informer() })
			}
		})
	}
}

// expectSeen is controllertest.ExpectSeen for an object in one of the caches.
func expectSeen[T controllertest.Object](t *testing.T, begin func() *harness, pod *corev1.Pod, before T,
	handler func(c *Controller, before, after T), informer func(*harness) cache.SharedIndexInformer,
) {
	t.Helper()
	controllertest.ExpectSeen(t, before, func(changed T) (enqueued, did []string, err error) {
		h := begin()
		require.NoError(t, informer(h).GetIndexer().Update(changed))
		enqueued = controllertest.Enqueued(t, &h.controller.queue, func() { handler(h.controller, before, changed) })
		did, _, err = h.sync(pod.UID)
		return enqueued, append(slices.Clone(did), h.Events()...), err
	}, "Status.Conditions[0].Message") // an error may have another text each time
}
