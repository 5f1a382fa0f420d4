// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/children"
)

var errKilled = errors.New("the operator is killed")

const deleteSet = "delete statefulsets demo"

func growClaim(ordinal int32) string { return "patch persistentvolumeclaims data-" + podName(ordinal) }

// grow raises the size of the volumes.
func grow(c *v1alpha1.MarekvsCluster) { c.Spec.Storage.Size = ptr.To(quantity("20Gi")) }

// requests returns the requested size of each volume claim.
func (h *harness) requests() map[string]string {
	requests := map[string]string{}
	for _, claim := range h.claims() {
		requests[claim.Name] = claim.Spec.Resources.Requests.Storage().String()
	}
	return requests
}

// growVolumes brings each volume to the size of its claim, as a storage driver does.
func (h *harness) growVolumes() {
	for _, claim := range h.claims() {
		claim.Status.Capacity, claim.Status.Conditions = claim.Spec.Resources.Requests, nil
		h.builtIn.Update(claimResource, &claim)
	}
}

// processes returns the UID of each Pod.
func (h *harness) processes() map[string]types.UID {
	uids := map[string]types.UID{}
	for _, pod := range h.pods() {
		uids[pod.Name] = pod.UID
	}
	return uids
}

func all(size string, nodes int32) map[string]string {
	requests := map[string]string{}
	for ordinal := range nodes {
		requests["data-"+podName(ordinal)] = size
	}
	return requests
}

// The claims of the nodes grow first. Then the StatefulSet is created again for the same Pods, so that
// new nodes get volumes of the size, too.
func TestVolumesGrow(t *testing.T) {
	h := newHarness(t, nil)
	before, pods, gossip := h.set(), h.processes(), h.gossip()
	h.change(grow)
	h.expect(growClaim(0), growClaim(1), growClaim(2), writeStatus)
	assert.Equal(t, all("20Gi", 3), h.requests())
	assert.Equal(t, "volume claim data-demo-0 is to grow from 10Gi to 20Gi.", conditionOf(h, v1alpha1.ConditionVolumesExpanded).Message)
	assert.Equal(t, []string{
		"Normal VolumeExpanded Raised the size of volume claim data-demo-0 to 20Gi",
		"Normal VolumeExpanded Raised the size of volume claim data-demo-1 to 20Gi",
		"Normal VolumeExpanded Raised the size of volume claim data-demo-2 to 20Gi",
	}, h.events())

	h.expect(deleteSet, writeStatus)
	assert.Equal(t, []string{"Normal StatefulSetRecreated Deleted the StatefulSet without its Pods, to create it again with volume claims of 20Gi"}, h.events())
	h.expect(writeStatus) // the garbage collector has not finished
	status := h.cluster().Status
	assert.Equal(t, "the StatefulSet is being created again for its Pods, which run on", status.Message)
	assert.Equal(t, ptr.To[int32](3), status.ReadyNodes)
	assert.Equal(t, "False Creating", reason(status, v1alpha1.ConditionReady))
	assert.Equal(t, "True AsExpected", reason(status, v1alpha1.ConditionAvailable))
	h.runStatefulSet()
	require.Nil(t, h.set())
	h.expect(applySet)
	after := h.set()
	assert.NotEqual(t, before.UID, after.UID)
	assert.Equal(t, "20Gi", children.StorageOf(after).String())
	assert.Equal(t, before.Spec.Replicas, after.Spec.Replicas)
	assert.Equal(t, before.Labels, after.Labels)
	assert.Equal(t, before.Annotations, after.Annotations)
	assert.Equal(t, before.OwnerReferences, after.OwnerReferences)
	assert.Equal(t, gossip, h.gossip())
	h.runStatefulSet()

	claims := h.claims()
	claims[0].Status.Conditions = []corev1.PersistentVolumeClaimCondition{{
		Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue, Message: "Waiting for a Pod",
	}}
	h.builtIn.Update(claimResource, &claims[0])
	h.settle()
	assert.Equal(t, "False Expanding", reason(h.cluster().Status, v1alpha1.ConditionVolumesExpanded))
	assert.Equal(t, "the volume of claim data-demo-0 has 10Gi of 20Gi; FileSystemResizePending: Waiting for a Pod", h.cluster().Status.Message)
	h.growVolumes()
	h.settle()
	assert.Equal(t, "True AsExpected", reason(h.cluster().Status, v1alpha1.ConditionVolumesExpanded))
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
	assert.Equal(t, pods, h.processes(), "no Pod was restarted")

	h.change(sized(4))
	h.settle()
	assert.Equal(t, all("20Gi", 4), h.requests())
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
}

// A claim that cannot grow is named with its StorageClass, and nothing is deleted. The size of the cluster
// and its Pods are managed as before.
func TestVolumesThatCannotGrow(t *testing.T) {
	for want, change := range map[string]func(*harness){
		"volume claim data-demo-1 cannot grow from 10Gi to 20Gi: allowVolumeExpansion of its StorageClass other is not true": func(h *harness) {
			h.builtIn.Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
		},
		"volume claim data-demo-1 cannot grow from 10Gi to 20Gi: its StorageClass other does not exist": func(*harness) {},
		"volume claim data-demo-1 cannot grow from 10Gi to 20Gi: it has no StorageClass": func(h *harness) {
			claim := h.claims()[1]
			claim.Spec.StorageClassName = nil
			h.builtIn.Update(claimResource, &claim)
		},
	} {
		h := newHarness(t, nil)
		claim := h.claims()[1]
		claim.Spec.StorageClassName = ptr.To("other")
		h.builtIn.Update(claimResource, &claim)
		change(h)
		h.change(grow)
		h.expect(growClaim(0), growClaim(2), writeStatus)
		h.settle()
		assert.Equal(t, map[string]string{"data-demo-0": "20Gi", "data-demo-1": "10Gi", "data-demo-2": "20Gi"}, h.requests(), want)
		status := h.cluster().Status
		assert.Equal(t, "False ExpansionNotAllowed", reason(status, v1alpha1.ConditionVolumesExpanded), want)
		assert.Equal(t, want+".", conditionOf(h, v1alpha1.ConditionVolumesExpanded).Message)
		assert.Equal(t, v1alpha1.PhaseBlocked, status.Phase, want)
		assert.Equal(t, want, status.Message)
		assert.Contains(t, h.events(), "Warning ExpansionNotAllowed "+want+".")
		assert.NotContains(t, h.writes(), deleteSet)

		h.change(sized(4))
		h.settle()
		assert.Equal(t, "10Gi", h.requests()["data-demo-1"])
		assert.Equal(t, "20Gi", h.requests()["data-demo-3"], "a new node")
		assert.NotContains(t, strings.Join(h.events(), "\n"), "ExpansionNotAllowed", "the warning is not repeated")

		claim = h.claims()[1]
		claim.Spec.StorageClassName = ptr.To("standard")
		h.builtIn.Update(claimResource, &claim)
		h.settle()
		h.growVolumes()
		h.settle()
		assert.Equal(t, all("20Gi", 4), h.requests(), want)
		assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase, want)
	}
}

// expectAccepted expects that the API server accepts the requests: it lowers the request of a claim only to more than its
// volume has (k8s.io/kubernetes v1.36.3, pkg/apis/core/validation/validation.go, ValidatePersistentVolumeClaimUpdate).
func (h *harness) expectAccepted(before map[string]string) {
	h.t.Helper()
	for _, claim := range h.claims() {
		request, had := claim.Spec.Resources.Requests.Storage(), quantity(before[claim.Name])
		if request.Cmp(had) < 0 {
			assert.Positive(h.t, request.Cmp(*claim.Status.Capacity.Storage()), "the request %s of claim %s", request, claim.Name)
		}
	}
}

// A size that was typed too large can be lowered while volumes have not grown to it: their claims get the smaller size, and
// claims that are created later, too. A volume that has grown keeps its size.
func TestASizeThatWasTooLargeIsLowered(t *testing.T) {
	for name, c := range map[string]struct {
		lowered string
		want    map[string]string
	}{
		"to more than the volumes have": {"15Gi", map[string]string{"data-demo-0": "15Gi", "data-demo-1": "1Ti", "data-demo-2": "15Gi"}},
		"to what they have":             {"10Gi", map[string]string{"data-demo-0": "10737418241", "data-demo-1": "1Ti", "data-demo-2": "10737418241"}},
	} {
		h := newHarness(t, nil)
		pods := h.processes()
		assert.Nil(t, h.cluster().Status.StorageReducibleTo)
		h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Storage.Size = ptr.To(quantity("1Ti")) })
		h.settle()
		require.Equal(t, all("1Ti", 3), h.requests(), name)
		require.Equal(t, "1Ti", children.StorageOf(h.set()).String(), name)
		require.Equal(t, "10Gi", h.cluster().Status.StorageReducibleTo.String(), name)
		h.changeClaim(1, func(claim *corev1.PersistentVolumeClaim) { claim.Status.Capacity = claim.Spec.Resources.Requests })
		h.settle()
		require.Equal(t, "10Gi", h.cluster().Status.StorageReducibleTo.String(), "%s: of the largest that grows", name)
		h.events()

		before := h.requests()
		h.change(func(cluster *v1alpha1.MarekvsCluster) { cluster.Spec.Storage.Size = ptr.To(quantity(c.lowered)) })
		h.settle()
		assert.Equal(t, c.want, h.requests(), name)
		h.expectAccepted(before)
		assert.Contains(t, h.events(), "Normal ExpansionReduced Lowered the size of volume claim data-demo-0 to "+c.want["data-demo-0"], name)
		h.settle()
		assert.Equal(t, c.lowered, children.StorageOf(h.set()).String(), "%s: of new nodes", name)
		assert.Equal(t, c.want, h.requests(), "%s: once", name)
		h.growVolumes()
		h.settle()
		assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase, name)
		assert.Equal(t, "True AsExpected", reason(h.cluster().Status, v1alpha1.ConditionVolumesExpanded), name)
		assert.Nil(t, h.cluster().Status.StorageReducibleTo, "%s: every volume has its size", name)
		assert.Equal(t, pods, h.processes(), "%s: no Pod was restarted", name)
		h.change(sized(4))
		h.settle()
		assert.Equal(t, c.lowered, h.requests()["data-demo-3"], name)
	}
}

// If no StorageClass lets volumes grow, the size can be taken back to what it was: no claim has requested more.
func TestASizeThatVolumesCannotGrowToIsTakenBack(t *testing.T) {
	h := newHarness(t, nil)
	for _, claim := range h.claims() {
		claim.Spec.StorageClassName = nil
		h.builtIn.Update(claimResource, &claim)
	}
	h.change(grow)
	h.settle()
	require.Equal(t, v1alpha1.PhaseBlocked, h.cluster().Status.Phase)
	assert.Equal(t, "10Gi", h.cluster().Status.StorageReducibleTo.String())
	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Storage.Size = ptr.To(quantity("10Gi")) })
	h.settle()
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
	assert.Equal(t, all("10Gi", 3), h.requests())
	assert.NotContains(t, h.writes(), deleteSet)
}

// A request that a user has raised stays, as does a claim of an earlier cluster whose volume is larger.
func TestRequestsOfUsersAreKept(t *testing.T) {
	h := newHarness(t, nil)
	h.changeClaim(1, func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: quantity("40Gi")}
	})
	h.changeClaim(2, func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: quantity("50Gi")}
		claim.Status.Capacity = claim.Spec.Resources.Requests
	})
	want := map[string]string{"data-demo-0": "10Gi", "data-demo-1": "40Gi", "data-demo-2": "50Gi"}
	h.settle()
	assert.Equal(t, want, h.requests())
	h.change(grow)
	h.settle()
	want["data-demo-0"] = "20Gi"
	assert.Equal(t, want, h.requests())
	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Storage.Size = ptr.To(quantity("15Gi")) })
	h.settle()
	want["data-demo-0"] = "15Gi"
	assert.Equal(t, want, h.requests())
}

// A new cluster, or a node that is added, whose volumes nobody can provide begins again with claims of the smaller size:
// claims without a volume cannot be changed, and nothing has run with them.
func TestClaimsThatNeverHadAVolumeAreCreatedAgain(t *testing.T) {
	pending := func(h *harness) {
		for _, claim := range h.claims() {
			if claim.Spec.Resources.Requests.Storage().Cmp(quantity("1Ti")) == 0 && claim.Status.Capacity != nil {
				claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
				h.builtIn.Update(claimResource, &claim)
			}
		}
	}
	lower := func(c *v1alpha1.MarekvsCluster) { c.Spec.Storage.Size = ptr.To(quantity("10Gi")) }

	h := newEmpty(t, func(c *v1alpha1.MarekvsCluster) { c.Spec.Storage.Size = ptr.To(quantity("1Ti")) })
	h.full = -1
	for range 10 {
		h.pass()
		pending(h)
	}
	require.Equal(t, all("1Ti", 3), h.requests())
	require.Equal(t, "0", h.cluster().Status.StorageReducibleTo.String())
	h.change(lower)
	for range 10 {
		h.pass()
		pending(h)
	}
	assert.Equal(t, "10Gi", children.StorageOf(h.set()).String())
	assert.Equal(t, all("10Gi", 3), h.requests())
	assert.True(t, meta.IsStatusConditionTrue(h.cluster().Status.Conditions, v1alpha1.ConditionVolumesAvailable), "no volume was lost")
	h.full = 0
	for _, pod := range h.pods() {
		h.builtIn.Remove(podResource, "ns", pod.Name) // the scheduler finds Nodes for them
	}
	for range 3 {
		h.settle()
	}
	require.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase, "%+v", h.cluster().Status)
	assert.Nil(t, h.cluster().Status.StorageReducibleTo)

	// A claim without a volume does not let the size of a cluster with volumes be reduced.
	h.full = 3
	h.change(sized(4))
	h.pass()
	h.changeClaim(3, func(claim *corev1.PersistentVolumeClaim) {
		claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
	})
	h.pass()
	assert.Nil(t, h.cluster().Status.StorageReducibleTo)
}

// Wherever the operator is killed while volumes grow, the next operator ends it: with the same Pods, size and
// gossip cluster. The write that it is killed at has its effect, or has not.
func TestAnOperatorIsKilledWhileVolumesGrow(t *testing.T) {
	for kill := range 10 {
		for _, done := range []bool{true, false} {
			h := newHarness(t, sized(4))
			h.change(sized(3)) // leaves the claim of a removed node
			for range 4 {
				h.settle()
			}
			require.Equal(t, int32(3), *h.set().Spec.Replicas)
			pods, gossip, revisions := h.processes(), h.gossip(), h.revisions()
			removed := h.cluster().Status.LastScaleDownTime
			h.change(grow)
			writes, dead, killed := 0, false, false
			h.builtIn.Interrupt = func(action clienttesting.Action) (bool, error) {
				verb := action.GetVerb()
				switch {
				case dead:
					return false, errKilled
				case verb == "get", verb == "list":
					return false, nil
				}
				writes++
				if dead = writes == kill+1; dead {
					killed = true
					return done, errKilled
				}
				return false, nil
			}
			h.kinds.Interrupt = h.builtIn.Interrupt
			for range 30 {
				h.show()
				_, err := h.syncStale(t.Context())
				require.Equal(t, dead, err != nil, "%v", err)
				if dead {
					dead, h.instance = false, h.newInstance(h.kube, h.nodes)
				}
				h.runStatefulSet()
				h.growVolumes()
				h.advance(period)
			}
			at := fmt.Sprintf("killed at write %d, done: %t", kill, done)
			h.builtIn.Interrupt, h.kinds.Interrupt = nil, nil
			assert.True(t, killed || writes <= kill, at)
			assert.Equal(t, "20Gi", children.StorageOf(h.set()).String(), at)
			assert.Equal(t, int32(3), *h.set().Spec.Replicas, "%s: the removed node does not come back", at)
			want := all("20Gi", 3)
			want["data-demo-3"] = "10Gi"
			assert.Equal(t, want, h.requests(), at)
			assert.Equal(t, pods, h.processes(), at)
			assert.Equal(t, gossip, h.gossip(), at)
			assert.Equal(t, revisions, h.revisions(), at)
			assert.Equal(t, removed, h.cluster().Status.LastScaleDownTime, at)
			assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase, "%s: %+v", at, h.cluster().Status)

			h.change(sized(4))
			h.settle()
			h.growVolumes()
			h.settle()
			assert.Equal(t, all("20Gi", 4), h.requests(), "%s: the claim of the removed node", at)
		}
	}
}

// While Pods change, the StatefulSet is kept, because it creates them again. Volumes grow nevertheless.
func TestTheStatefulSetIsKeptWhilePodsChange(t *testing.T) {
	for want, change := range map[string]func(*harness){
		"when all Pods are ready: 2 of 3 are": func(h *harness) { h.crash(1) },
		"after the update of the Pods": func(h *harness) {
			h.under = 7
			h.change(imaged("new"))
		},
		"after the change of the size": func(h *harness) { h.change(sized(5)) },
	} {
		h := newHarness(t, nil)
		before := h.set()
		change(h)
		if want == "after the change of the size" {
			h.builtIn.Fail(applySet, apierrors.NewInternalError(errors.New("broken")))
		}
		h.change(grow)
		for range 5 {
			h.show()
			_, _ = h.syncStale(t.Context())
			if h.set().Status.ObservedGeneration != h.set().Generation {
				h.runStatefulSet()
			}
			h.advance(period)
		}
		assert.Equal(t, all("20Gi", 3), h.requests(), want)
		assert.Equal(t, before.UID, h.set().UID, want)
		h.growVolumes()
		h.show()
		_, _ = h.syncStale(t.Context())
		assert.Equal(t, "the StatefulSet creates volume claims of 10Gi until it is created again with 20Gi, "+want+".",
			conditionOf(h, v1alpha1.ConditionVolumesExpanded).Message)
	}
}

// The StatefulSet is deleted as it was read from the API server.
func TestAStatefulSetThatChangedIsNotDeleted(t *testing.T) {
	h := newHarness(t, nil)
	h.change(grow)
	h.pass()
	h.show()
	pod := h.pod(1)
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	h.builtIn.Update(podResource, pod)
	h.writes()
	_, err := h.syncStale(t.Context())
	require.NoError(t, err)
	assert.NotContains(t, h.writes(), deleteSet)
}

// A claim without a volume cannot grow, and keeps the StatefulSet; a claim that is larger stays.
func TestOtherClaims(t *testing.T) {
	h := newHarness(t, nil)
	claims := h.claims()
	claims[0].Status.Phase = corev1.ClaimPending
	claims[1].Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: quantity("30Gi")}
	claims[1].Status.Capacity = claims[1].Spec.Resources.Requests
	for i := range claims {
		h.builtIn.Update(claimResource, &claims[i])
	}
	h.change(grow)
	h.expect(growClaim(2), writeStatus)
	h.settle()
	assert.Equal(t, map[string]string{"data-demo-0": "10Gi", "data-demo-1": "30Gi", "data-demo-2": "20Gi"}, h.requests())
	assert.Contains(t, h.cluster().Status.Message, "volume claim data-demo-0 has no volume yet")
	assert.NotContains(t, h.writes(), deleteSet)
}

// A paused cluster does not grow, and says so.
func TestThePauseOfAnExpansion(t *testing.T) {
	h := newHarness(t, nil)
	h.change(func(c *v1alpha1.MarekvsCluster) {
		grow(c)
		c.Spec.Paused = true
	})
	h.expect(writeStatus)
	assert.Equal(t, v1alpha1.PhaseBlocked, h.cluster().Status.Phase)
	assert.Equal(t, all("10Gi", 3), h.requests())
}

// Pods that are no nodes of an earlier StatefulSet do not count.
func TestPodsThatNoStatefulSetCreated(t *testing.T) {
	h := newHarness(t, nil)
	for _, pod := range h.pods() {
		pod.OwnerReferences = nil
		h.builtIn.Update(podResource, &pod)
	}
	forged := newPod(h.set(), 40, "forged", "10.0.9.9")
	forged.OwnerReferences, forged.Labels["statefulset.kubernetes.io/pod-name"] = nil, "other"
	h.builtIn.Add(forged)
	h.builtIn.Remove(setResource, "ns", "demo")
	h.expect(applySet, writeStatus)
	assert.Equal(t, int32(3), *h.set().Spec.Replicas)
	assert.Equal(t, ptr.To[int32](3), h.set().Spec.UpdateStrategy.RollingUpdate.Partition, "no Pod is updated")
}
