// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/reference"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

const (
	makesNstanceMachine = "create nstancemachines {}"
	makesMachine        = "create machines {}"
)

func TestSyncMakesThePairOnce(t *testing.T) {
	pod := newPod("asking", "gpu")
	pod.Annotations[v1beta1.AnnotationOnDemandInstanceType] = "g5.xlarge"
	h := newHarness(t, 0, servers{"a": having("gpu")}, pod)
	h.expect(pod, makesNstanceMachine, makesMachine)

	writes, requeue, err := h.sync(pod.UID)
	if err != nil || len(writes) > 0 || requeue != staleRetry {
		t.Errorf("before the caches show it: wrote %q, requeue %s, error %v", writes, requeue, err)
	}
	h.expect(pod)
	h.expectEvents()

	nstanceMachine := stored[v1beta1.NstanceMachine](h, "nstancemachines", pod)
	machine := stored[clusterv1.Machine](h, "machines", pod)
	labels := map[string]string{clusterv1.ClusterNameLabel: clusterName, v1beta1.LabelPodUID: "pod-asking"}
	annotations := map[string]string{v1beta1.AnnotationPodNamespace: "team", v1beta1.AnnotationPodName: "asking"}
	for _, made := range []metav1.Object{nstanceMachine, machine} {
		if made.GetName() != "on-demand-pod-asking" || made.GetNamespace() != namespace || len(made.GetOwnerReferences()) > 0 || len(made.GetFinalizers()) > 0 ||
			!maps.Equal(made.GetLabels(), labels) || !maps.Equal(made.GetAnnotations(), annotations) {
			t.Errorf("made %+v", made)
		}
	}
	spec := nstanceMachine.Spec
	vars := map[string]string{"pod_namespace": "team", "pod_name": "asking", "pod_uid": "pod-asking"}
	if spec.GroupRef.Name != "gpu" || spec.InstanceType != "g5.xlarge" || spec.Shard != "" || !maps.Equal(spec.Vars, vars) {
		t.Errorf("made of %+v", spec)
	}
	ref := clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: "NstanceMachine", Name: "on-demand-pod-asking"}
	if machine.Spec.ClusterName != clusterName || machine.Spec.InfrastructureRef != ref || machine.Spec.Bootstrap.DataSecretName == nil || *machine.Spec.Bootstrap.DataSecretName != "" {
		t.Errorf("made of %+v", machine.Spec)
	}
}

func TestSyncGoesOnAfterEveryFailure(t *testing.T) {
	for _, step := range []string{makesNstanceMachine, makesMachine} {
		for name, lost := range map[string]bool{"refused": false, "carried out, and the reply lost": true} {
			t.Run(step+" "+name, func(t *testing.T) {
				pod := newPod("asking", "gpu")
				h := newHarness(t, 1, servers{"a": having("gpu")}, pod)
				failures := h.refused
				if lost {
					failures = h.lost
				}
				failing := strings.ReplaceAll(step, "{}", machineName(pod.UID))
				failures[failing] = apierrors.NewInternalError(http.ErrHandlerTimeout)
				if _, _, err := h.sync(pod.UID); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "of Pod team/asking") {
					t.Errorf("got error %v", err)
				}
				delete(failures, failing)

				// First with caches that show nothing, then with all of it; and after
				// a crash.
				for range 2 {
					if _, _, err := h.sync(pod.UID); err != nil {
						t.Error(err)
					}
				}
				h.start(1, servers{"a": having("gpu")})
				if _, _, err := h.sync(pod.UID); err != nil {
					t.Error(err)
				}
				h.expect(pod)
				stored[v1beta1.NstanceMachine](h, "nstancemachines", pod)
				stored[clusterv1.Machine](h, "machines", pod)
				h.expectEvents()
			})
		}
	}
}

func TestSyncMakesTheMachineThatACrashHasLeftOut(t *testing.T) {
	pod := newPod("asking", "gpu")
	h := newHarness(t, 1, servers{"a": having("gpu")}, pod)
	h.store("nstancemachines", newNstanceMachine(pod))
	h.expect(pod, makesMachine)
	h.expect(pod)
}

func TestSyncMakesThePairAgainOnceBothAreGone(t *testing.T) {
	pod := newPod("asking", "gpu")
	h := newHarness(t, 1, servers{"a": having("gpu")}, pod)
	h.expect(pod, makesNstanceMachine, makesMachine)
	h.store("nstancemachines", owned(stored[v1beta1.NstanceMachine](h, "nstancemachines", pod)))
	h.remove("machines", pod)
	h.expect(pod)
	h.remove("nstancemachines", pod)
	h.expect(pod, makesNstanceMachine, makesMachine)

	// Somebody deletes the NstanceMachine itself. The Machine is good for nothing
	// without it.
	h.remove("nstancemachines", pod)
	h.expect(pod, "delete machines {}")
	h.expect(pod, makesNstanceMachine, makesMachine)
}

func TestSyncKeepsAMachineWhoseNstanceMachineIsOnlyNotInTheCache(t *testing.T) {
	pod := newPod("asking", "gpu")
	h := newHarness(t, 0, servers{"a": having("gpu")}, pod)
	h.store("nstancemachines", newNstanceMachine(pod))
	h.store("machines", newMachine(pod))
	h.show()
	h.noError(h.nstanceMachines.GetIndexer().Delete(newNstanceMachine(pod)))
	if writes, _, err := h.sync(pod.UID); err != nil || len(writes) > 0 {
		t.Errorf("wrote %q, error %v", writes, err)
	}
}

func TestSyncTellsThePodWhyItGetsNoMachineOnce(t *testing.T) {
	shards := servers{"a": having("workers", "cpu"), "b": having("cpu")}
	tests := map[string]struct{ group, want string }{
		"unknown group":  {"gpu", `Warning UnknownGroup annotation on-demand.nstance.dev/group: no shard has a group "gpu"; there are: cpu, workers`},
		"bad annotation": {"GPU", `Warning InvalidAnnotation annotation on-demand.nstance.dev/group must be the id of a group: lower case letters, digits and single hyphens, at most 32 characters; it is "GPU"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := newPod("asking", test.group)
			h := newHarness(t, 0, shards, pod)
			for range 3 {
				h.expect(pod)
			}
			h.expectEvents(test.want)
			// Something else is told, of course.
			pod.Annotations[v1beta1.AnnotationOnDemandGroup] = "x--y"
			h.putPod(pod)
			h.expect(pod)
			if got := h.events(); len(got) != 1 {
				t.Errorf("recorded %q", got)
			}
			// Put right, it gets its machine.
			pod.Annotations[v1beta1.AnnotationOnDemandGroup] = "cpu"
			h.putPod(pod)
			h.expect(pod, makesNstanceMachine, makesMachine)
			h.expect(pod)
			h.expectEvents()
			if left := h.controller.complaints.last; len(left) > 0 {
				t.Errorf("remembers %v", left)
			}
		})
	}
}

func TestSyncWaitsForShardsBeforeItCallsAGroupUnknown(t *testing.T) {
	pod := newPod("asking", "gpu")
	shards := servers{}
	h := newHarness(t, 0, shards, pod)
	h.expect(pod)
	shards["a"] = having("cpu")
	shards["b"] = &server{}
	h.expect(pod)
	h.expectEvents()
	shards["b"] = having()
	h.expect(pod)
	h.expectEvents(`Warning UnknownGroup annotation on-demand.nstance.dev/group: no shard has a group "gpu"; there are: cpu`)
	shards["b"] = having("gpu")
	shards["b"].groups[0].Deleting = true
	h.expect(pod)
	shards["b"] = having("gpu")
	h.expect(pod, makesNstanceMachine, makesMachine)
}

func TestSyncLeavesWhatHasTheMachinesNameAlone(t *testing.T) {
	pod := newPod("asking", "gpu")
	taken := `Warning NameTaken a Machine or NstanceMachine "on-demand-pod-asking" is there already, and is not the machine of this Pod`
	for _, resource := range []string{"nstancemachines", "machines"} {
		t.Run(resource, func(t *testing.T) {
			h := newHarness(t, 1, servers{"a": having("gpu")}, pod)
			other := newMachine(pod)
			other.Labels = nil
			h.store(resource, other)
			// The cache does not show it at first.
			want := []string{"create nstancemachines on-demand-pod-asking"}
			if resource == "machines" {
				want = append(want, "create machines on-demand-pod-asking")
			}
			if writes, _, err := h.sync(pod.UID); err != nil || !slices.Equal(writes, want) {
				t.Errorf("wrote %q, error %v", writes, err)
			}
			h.expectEvents(taken)
			h.expect(pod)
			h.dropPod(pod)
			if resource == "machines" {
				h.expect(pod, "delete nstancemachines {}")
			}
			h.expect(pod)
			h.expectEvents()
			if got := stored[clusterv1.Machine](h, resource, pod); len(got.Labels) > 0 {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestSyncRespectsThePauseOfTheCluster(t *testing.T) {
	pod, gone := newPod("asking", "gpu"), newPod("gone", "gpu")
	h := newHarness(t, 0, servers{"a": having("gpu")}, pod)
	h.store("nstancemachines", newNstanceMachine(gone))
	h.store("machines", newMachine(gone))
	h.noError(h.clusters.GetIndexer().Update(paused(newCluster())))
	h.expect(pod)
	h.expect(gone)
	h.noError(h.clusters.GetIndexer().Update(newCluster()))
	h.expect(pod, makesNstanceMachine, makesMachine)
	h.expect(gone, "delete machines {}")
}

// What an event is about is found out from what the cache has of a Pod.
func TestEventsAreAboutThePod(t *testing.T) {
	ref, err := reference.GetReference(scheme.Scheme, inCache(newPod("asking", "gpu")))
	if err != nil {
		t.Fatal(err)
	}
	if ref.GroupVersionKind() != (schema.GroupVersionKind{Version: "v1", Kind: "Pod"}) || ref.Namespace != "team" || ref.Name != "asking" || ref.UID != "pod-asking" {
		t.Errorf("refers to %+v", ref)
	}
}
