// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/reference"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

const (
	createsNstanceMachine = "create nstancemachines {}"
	createsMachine        = "create machines {}"
)

func TestSyncCreatesThePairOnce(t *testing.T) {
	pod := newPod("requesting", "gpu")
	pod.Annotations[v1beta1.AnnotationOnDemandInstanceType] = "g5.xlarge"
	h := newHarness(t, 0, newShards("gpu"), pod)
	h.expect(pod, createsNstanceMachine, createsMachine)

	writes, requeue, err := h.sync(pod.UID)
	if err != nil || len(writes) > 0 || requeue != staleRetry {
		t.Errorf("before the caches show it: wrote %q, requeue %s, error %v", writes, requeue, err)
	}
	h.expect(pod)
	h.ExpectEvents()

	nstanceMachine := stored[v1beta1.NstanceMachine](h, "nstancemachines", pod)
	machine := stored[clusterv1.Machine](h, "machines", pod)
	labels := map[string]string{clusterv1.ClusterNameLabel: clusterName, v1beta1.LabelPodUID: "pod-requesting"}
	annotations := map[string]string{v1beta1.AnnotationPodNamespace: "team", v1beta1.AnnotationPodName: "requesting"}
	for _, made := range []metav1.Object{nstanceMachine, machine} {
		if made.GetName() != "on-demand-pod-requesting" || made.GetNamespace() != namespace || len(made.GetOwnerReferences()) > 0 || len(made.GetFinalizers()) > 0 ||
			!maps.Equal(made.GetLabels(), labels) || !maps.Equal(made.GetAnnotations(), annotations) {
			t.Errorf("made %+v", made)
		}
	}
	spec := nstanceMachine.Spec
	vars := map[string]string{"pod_namespace": "team", "pod_name": "requesting", "pod_uid": "pod-requesting"}
	if spec.GroupRef.Name != "gpu" || spec.InstanceType != "g5.xlarge" || spec.Shard != "" || !maps.Equal(spec.Vars, vars) {
		t.Errorf("made of %+v", spec)
	}
	ref := clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: "NstanceMachine", Name: "on-demand-pod-requesting"}
	if machine.Spec.ClusterName != clusterName || machine.Spec.InfrastructureRef != ref || machine.Spec.Bootstrap.DataSecretName == nil || *machine.Spec.Bootstrap.DataSecretName != "" {
		t.Errorf("made of %+v", machine.Spec)
	}
}

func TestSyncContinuesAfterEveryFailure(t *testing.T) {
	for _, step := range []string{createsNstanceMachine, createsMachine} {
		for name, lost := range map[string]bool{"refused": false, "carried out, and the reply lost": true} {
			t.Run(step+" "+name, func(t *testing.T) {
				pod := newPod("requesting", "gpu")
				h := newHarness(t, 1, newShards("gpu"), pod)
				failures := h.refused
				if lost {
					failures = h.lost
				}
				failing := strings.ReplaceAll(step, "{}", machineName(pod.UID))
				failures[failing] = apierrors.NewInternalError(http.ErrHandlerTimeout)
				if _, _, err := h.sync(pod.UID); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "of Pod team/requesting") {
					t.Errorf("got error %v", err)
				}
				delete(failures, failing)

				// The syncs run with caches that show nothing, with current caches, and after
				// a crash.
				for range 2 {
					if _, _, err := h.sync(pod.UID); err != nil {
						t.Error(err)
					}
				}
				h.start(1, newShards("gpu"))
				if _, _, err := h.sync(pod.UID); err != nil {
					t.Error(err)
				}
				h.expect(pod)
				stored[v1beta1.NstanceMachine](h, "nstancemachines", pod)
				stored[clusterv1.Machine](h, "machines", pod)
				h.ExpectEvents()
			})
		}
	}
}

func TestSyncCreatesTheMachineAfterACrash(t *testing.T) {
	pod := newPod("requesting", "gpu")
	h := newHarness(t, 1, newShards("gpu"), pod)
	h.store("nstancemachines", newNstanceMachine(pod))
	h.expect(pod, createsMachine)
	h.expect(pod)
}

func TestSyncCreatesThePairAgainOnceBothAreDeleted(t *testing.T) {
	pod := newPod("requesting", "gpu")
	h := newHarness(t, 1, newShards("gpu"), pod)
	h.expect(pod, createsNstanceMachine, createsMachine)
	h.store("nstancemachines", owned(stored[v1beta1.NstanceMachine](h, "nstancemachines", pod)))
	h.remove("machines", pod)
	h.expect(pod)
	h.remove("nstancemachines", pod)
	h.expect(pod, createsNstanceMachine, createsMachine)

	// Another client deletes the NstanceMachine. The Machine cannot get a Node without it.
	h.remove("nstancemachines", pod)
	h.expect(pod, "delete machines {}")
	h.expect(pod, createsNstanceMachine, createsMachine)
}

func TestSyncKeepsAMachineWhoseNstanceMachineIsOnlyMissingInTheCache(t *testing.T) {
	pod := newPod("requesting", "gpu")
	h := newHarness(t, 0, newShards("gpu"), pod)
	h.store("nstancemachines", newNstanceMachine(pod))
	h.store("machines", newMachine(pod))
	h.show()
	require.NoError(h.T, h.Informers.Nstance.NstanceMachines().Informer().GetIndexer().Delete(newNstanceMachine(pod)))
	if writes, _, err := h.sync(pod.UID); err != nil || len(writes) > 0 {
		t.Errorf("wrote %q, error %v", writes, err)
	}
}

func TestSyncRecordsOnceWhyAPodGetsNoMachine(t *testing.T) {
	shards := newShards("workers", "cpu")
	setGroups(shards, "b", "cpu")
	tests := map[string]struct{ group, want string }{
		"unknown group":  {"gpu", `Warning UnknownGroup annotation on-demand.nstance.dev/group: no shard has a group "gpu"`},
		"bad annotation": {"GPU", `Warning InvalidAnnotation annotation on-demand.nstance.dev/group must be the id of a group: lower case letters, digits and single hyphens, at most 32 characters; it is "GPU"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := newPod("requesting", test.group)
			h := newHarness(t, 0, shards, pod)
			for range 3 {
				h.expect(pod)
			}
			h.ExpectEvents(test.want)
			// Another rejection is recorded.
			pod.Annotations[v1beta1.AnnotationOnDemandGroup] = "x--y"
			h.putPod(pod)
			h.expect(pod)
			if got := h.Events(); len(got) != 1 {
				t.Errorf("recorded %q", got)
			}
			// With a valid annotation the Pod gets its machine.
			pod.Annotations[v1beta1.AnnotationOnDemandGroup] = "cpu"
			h.putPod(pod)
			h.expect(pod, createsNstanceMachine, createsMachine)
			h.expect(pod)
			h.ExpectEvents()
			if left := h.controller.rejections.last; len(left) > 0 {
				t.Errorf("remembers %v", left)
			}
		})
	}
}

func TestSyncWaitsForShardsBeforeItCallsAGroupUnknown(t *testing.T) {
	pod := newPod("requesting", "gpu")
	shards := shardtest.New()
	h := newHarness(t, 0, shards, pod)
	h.expect(pod)
	setGroups(shards, "a", "cpu")
	setGroups(shards, "b")
	shards.ByID["b"].Synced = false
	h.expect(pod)
	h.ExpectEvents()
	setGroups(shards, "b")
	h.expect(pod)
	h.ExpectEvents(`Warning UnknownGroup annotation on-demand.nstance.dev/group: no shard has a group "gpu"`)
	setGroups(shards, "b", "gpu")
	shards.SetGroup("b", shard.Group{Key: "gpu", Deleting: true})
	h.expect(pod)
	setGroups(shards, "b", "gpu")
	h.expect(pod, createsNstanceMachine, createsMachine)
}

func TestSyncDoesNotChangeOtherObjectsWithTheName(t *testing.T) {
	pod := newPod("requesting", "gpu")
	taken := `Warning NameTaken a Machine or NstanceMachine "on-demand-pod-requesting" exists already, and is not the machine of this Pod`
	for _, resource := range []string{"nstancemachines", "machines"} {
		t.Run(resource, func(t *testing.T) {
			h := newHarness(t, 1, newShards("gpu"), pod)
			other := newMachine(pod)
			other.Labels = nil
			h.store(resource, other)
			// At first the cache does not show the object.
			want := []string{"create nstancemachines on-demand-pod-requesting"}
			if resource == "machines" {
				want = append(want, "create machines on-demand-pod-requesting")
			}
			if writes, _, err := h.sync(pod.UID); err != nil || !slices.Equal(writes, want) {
				t.Errorf("wrote %q, error %v", writes, err)
			}
			h.ExpectEvents(taken)
			h.expect(pod)
			h.dropPod(pod)
			if resource == "machines" {
				h.expect(pod, "delete nstancemachines {}")
			}
			h.expect(pod)
			h.ExpectEvents()
			if got := stored[clusterv1.Machine](h, resource, pod); len(got.Labels) > 0 {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestSyncRespectsThePauseOfTheCluster(t *testing.T) {
	pod, deleted := newPod("requesting", "gpu"), newPod("deleted", "gpu")
	h := newHarness(t, 0, newShards("gpu"), pod)
	h.store("nstancemachines", newNstanceMachine(deleted))
	h.store("machines", newMachine(deleted))
	require.NoError(h.T, h.Informers.Clusters.GetIndexer().Update(controllertest.PausedCluster(controllertest.NewCluster())))
	h.expect(pod)
	h.expect(deleted)
	require.NoError(h.T, h.Informers.Clusters.GetIndexer().Update(controllertest.NewCluster()))
	h.expect(pod, createsNstanceMachine, createsMachine)
	h.expect(deleted, "delete machines {}")
}

// Events refer to the Pod in the cache.
func TestEventsAreAboutThePod(t *testing.T) {
	ref, err := reference.GetReference(scheme.Scheme, inCache(newPod("requesting", "gpu")))
	require.NoError(t, err)
	if ref.GroupVersionKind() != (schema.GroupVersionKind{Version: "v1", Kind: "Pod"}) || ref.Namespace != "team" || ref.Name != "requesting" || ref.UID != "pod-requesting" {
		t.Errorf("refers to %+v", ref)
	}
}

// A DaemonSet creates a Pod for every machine, including a machine for one of its Pods.
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

// The scheduler would never place a Pod that already has a Node on a new machine.
func TestABoundPodGetsNoMachine(t *testing.T) {
	pod := newPod("requesting", "gpu")
	pod.Spec.NodeName = "worker-1"
	other := newPod("waiting", "gpu")
	h := newHarness(t, 1, newShards("gpu"), pod, other)
	h.expect(pod)
	h.ExpectEvents("Normal AlreadyBound the Pod is bound to a Node already, and gets no other machine")

	// The rejection is stored: a Pod is never unbound, and every change of a group syncs the
	// Pods without a machine.
	lists := len(h.lists)
	h.expect(pod)
	h.expect(pod)
	if len(h.lists) != lists {
		t.Errorf("read the Pod again: %q", h.lists[lists:])
	}
	h.ExpectEvents()

	// The bound Pod does not count for the limit.
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

// Without a limit a Pod whose disruption budget allows no eviction would keep the machine for
// ever.
func TestMachinesHaveADrainTimeout(t *testing.T) {
	for name, test := range map[string]struct {
		timeout    time.Duration
		annotation *string
		want       *int32
	}{
		"of the flag":                  {timeout: time.Hour, want: ptr.To[int32](3600)},
		"none":                         {},
		"of the Pod":                   {timeout: time.Hour, annotation: ptr.To("90s"), want: ptr.To[int32](90)},
		"of the Pod, in whole seconds": {timeout: time.Hour, annotation: ptr.To("200ms"), want: ptr.To[int32](1)},
		"of the Pod, without the flag": {annotation: ptr.To("90s"), want: ptr.To[int32](90)},
		"longer than the flag":         {timeout: time.Hour, annotation: ptr.To("2h"), want: ptr.To[int32](3600)},
		"none of the Pod":              {timeout: time.Hour, annotation: ptr.To("0s"), want: ptr.To[int32](3600)},
	} {
		for _, crash := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				pod := newPod("requesting", "gpu")
				if test.annotation != nil {
					pod.Annotations[v1beta1.AnnotationOnDemandDrainTimeout] = *test.annotation
				}
				h := newHarness(t, 0, newShards("gpu"), pod)
				h.controller.drainTimeout = test.timeout
				if crash {
					h.store("nstancemachines", newNstanceMachine(pod))
					h.expect(pod, createsMachine)
				} else {
					h.expect(pod, createsNstanceMachine, createsMachine)
				}
				deletion := stored[clusterv1.Machine](h, "machines", pod).Spec.Deletion
				assert.Equal(t, test.want, deletion.NodeDrainTimeoutSeconds, "the drain")
				assert.Equal(t, test.want, deletion.NodeVolumeDetachTimeoutSeconds, "the detachment of volumes")
			})
		}
	}
}

func TestAnInvalidDrainTimeoutIsRejected(t *testing.T) {
	for _, value := range []string{"", "soon", "-1s", "8761h"} {
		pod := newPod("requesting", "gpu")
		pod.Annotations[v1beta1.AnnotationOnDemandDrainTimeout] = value
		h := newHarness(t, 0, newShards("gpu"), pod)
		h.expect(pod)
		h.ExpectEvents(`Warning InvalidAnnotation annotation on-demand.nstance.dev/drain-timeout must be a duration, such as 90s or 1h30m, of 0s to 8760h0m0s; it is "` + value + `"`)
	}
}
