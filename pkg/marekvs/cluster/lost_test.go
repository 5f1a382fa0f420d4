// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

var (
	nodeResource   = corev1.SchemeGroupVersion.WithResource("nodes")
	volumeResource = corev1.SchemeGroupVersion.WithResource("persistentvolumes")
)

func replaceAfter(seconds int32) func(*v1alpha1.MarekvsCluster) {
	return func(c *v1alpha1.MarekvsCluster) { c.Spec.Storage.ReplaceLostAfterSeconds = seconds }
}

// localVolume returns a volume that only a Node with one of the host names can use.
func localVolume(name string, hosts ...string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: hosts},
			}}},
		}}},
	}
}

// requestReplacement asks for the replacement of the node of a claim.
func requestReplacement(claim *corev1.PersistentVolumeClaim) {
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, v1alpha1.AnnotationReplace, "true")
}

func (h *harness) claim(ordinal int32) *corev1.PersistentVolumeClaim {
	h.t.Helper()
	object, err := h.kube.Tracker().Get(claimResource, "ns", newClaim(ordinal).Name)
	require.NoError(h.t, err)
	return object.(*corev1.PersistentVolumeClaim).DeepCopy()
}

func (h *harness) changeClaim(ordinal int32, change func(*corev1.PersistentVolumeClaim)) {
	h.t.Helper()
	claim := h.claim(ordinal)
	change(claim)
	h.builtIn.Update(claimResource, claim)
}

// loseNode ends the Node of a node of the cluster. Only this Node could use the volume.
func (h *harness) loseNode(ordinal int32) {
	h.t.Helper()
	name := fmt.Sprintf("local-%d", ordinal)
	if _, err := h.kube.Tracker().Get(nodeResource, "", "host-other"); err != nil {
		h.builtIn.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "host-other", Labels: map[string]string{corev1.LabelHostname: "host-other"}}})
	}
	h.builtIn.Add(localVolume(name, fmt.Sprintf("host-%d", ordinal)))
	h.changeClaim(ordinal, func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = name })
	h.lost[h.claim(ordinal).UID] = true
	h.builtIn.Remove(podResource, "ns", podName(ordinal))
	h.runStatefulSet()
}

// claimUIDs returns the UIDs of the claims.
func (h *harness) claimUIDs() map[string]types.UID {
	uids := map[string]types.UID{}
	for _, claim := range h.claims() {
		uids[claim.Name] = claim.UID
	}
	return uids
}

// A volume on a Node that no longer exists is replaced when it has been lost for the time of the spec, and when
// the other nodes have every copy. The other nodes keep their Pods and claims.
func TestALostVolumeIsReplacedAfterTheDeadline(t *testing.T) {
	h := newHarness(t, replaceAfter(120))
	claims, pods := h.claimUIDs(), h.processes()
	h.loseNode(1)
	began := h.clock.Now()
	h.pass()
	assert.Equal(t, "the volume of pod demo-1 is lost: volume local-1 of claim data-demo-1 is on Kubernetes Node host-1, which does not exist; "+
		"it is replaced when that has been so for 2m0s.", conditionOf(h, v1alpha1.ConditionVolumesAvailable).Message)
	assert.Equal(t, v1alpha1.PhaseReconciling, h.cluster().Status.Phase)
	assert.Contains(t, h.events(), "Warning VolumeLost "+conditionOf(h, v1alpha1.ConditionVolumesAvailable).Message)
	for h.claim(1).UID == claims["data-demo-1"] {
		require.Less(t, h.clock.Since(began), 10*time.Minute, "%+v", h.cluster().Status)
		h.pass()
	}
	assert.Greater(t, h.clock.Since(began), 2*time.Minute)
	assert.Contains(t, h.events(), "Normal VolumeReplaced Deleted volume claim data-demo-1 and its Pod, to replace them: "+
		"volume local-1 of claim data-demo-1 is on Kubernetes Node host-1, which does not exist")
	h.settle()
	after := h.claimUIDs()
	assert.NotEqual(t, claims["data-demo-1"], after["data-demo-1"])
	for _, kept := range []string{"demo-0", "demo-2"} {
		assert.Equal(t, claims["data-"+kept], after["data-"+kept])
		assert.Equal(t, pods[kept], h.processes()[kept])
	}
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
	assert.Equal(t, "True AsExpected", reason(h.cluster().Status, v1alpha1.ConditionVolumesAvailable))
	assert.NotContains(t, h.set().Annotations, v1alpha1.AnnotationReplacing)
	h.writes()
	h.pass()
	assert.Empty(t, h.writes(), "nothing is left to do")
}

// Without a deadline a lost volume blocks until a user asks for its replacement.
func TestALostVolumeWithoutADeadlineNeedsARequest(t *testing.T) {
	h := newHarness(t, nil)
	before := h.claimUIDs()
	h.loseNode(2)
	for range 3 {
		h.settle()
	}
	assert.Equal(t, before, h.claimUIDs())
	assert.Equal(t, v1alpha1.PhaseBlocked, h.cluster().Status.Phase)
	assert.Equal(t, "False VolumeLost", reason(h.cluster().Status, v1alpha1.ConditionReady))
	assert.Contains(t, h.cluster().Status.Message, "it is replaced on request")
	h.changeClaim(2, requestReplacement)
	h.settle()
	assert.NotEqual(t, before["data-demo-2"], h.claimUIDs()["data-demo-2"])
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
}

// A node that works is replaced on request: the StatefulSet says so first, with its resource version, and a
// later sync deletes the claim and the Pod.
func TestANodeThatWorksIsReplacedOnRequest(t *testing.T) {
	h := newHarness(t, nil)
	h.changeClaim(0, requestReplacement)
	h.expect(applySet, writeStatus)
	assert.Equal(t, string(h.claim(0).UID), h.set().Annotations[v1alpha1.AnnotationReplacing])
	h.runStatefulSet()
	h.expect("delete persistentvolumeclaims data-demo-0", "delete pods demo-0")
	assert.Equal(t, []string{"Normal VolumeReplaced Deleted volume claim data-demo-0 and its Pod, to replace them on request"}, h.events())
	h.runStatefulSet()
	h.settle()
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
	assert.NotContains(t, h.set().Annotations, v1alpha1.AnnotationReplacing)
}

// A request that is withdrawn before the claim is deleted has no effect, nor has one with another value or for a
// paused cluster.
func TestRequestsWithoutEffect(t *testing.T) {
	h := newHarness(t, nil)
	before := h.claimUIDs()
	h.changeClaim(0, func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations = map[string]string{v1alpha1.AnnotationReplace: "false"}
	})
	h.settle()
	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Paused = true })
	h.changeClaim(0, requestReplacement)
	h.settle()
	assert.Equal(t, "False Paused", reason(h.cluster().Status, v1alpha1.ConditionReady))
	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Paused = false })
	h.pass()
	require.Contains(t, h.set().Annotations, v1alpha1.AnnotationReplacing)
	h.changeClaim(0, func(claim *corev1.PersistentVolumeClaim) { claim.Annotations = nil })
	h.settle()
	assert.NotContains(t, h.set().Annotations, v1alpha1.AnnotationReplacing)
	assert.Equal(t, before, h.claimUIDs())
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
}

// With a single copy nothing is replaced, and with two copies not two lost nodes.
func TestAReplacementThatMightLoseDataBlocks(t *testing.T) {
	h := newHarness(t, replaceAfter(1))
	before := h.claimUIDs()
	h.loseNode(0)
	h.loseNode(1)
	for range 3 {
		h.settle()
	}
	assert.Equal(t, "Blocked TooManyLost", string(h.cluster().Status.Phase)+" "+conditionOf(h, v1alpha1.ConditionVolumesAvailable).Reason)
	assert.Equal(t, before, h.claimUIDs())

	h = newHarness(t, func(c *v1alpha1.MarekvsCluster) { replaceAfter(1)(c); c.Spec.ReplicationFactor = 1 })
	before = h.claimUIDs()
	h.loseNode(0)
	h.changeClaim(1, requestReplacement)
	for range 3 {
		h.settle()
	}
	assert.Equal(t, "Blocked SingleCopy", string(h.cluster().Status.Phase)+" "+conditionOf(h, v1alpha1.ConditionVolumesAvailable).Reason)
	assert.Equal(t, before, h.claimUIDs())
}

// A volume is lost only if that is known: its Node may come back, others may use it, or nothing can be read.
func TestVolumesThatAreNotKnownToBeLost(t *testing.T) {
	failing := func(verb, resource string) func(*harness) {
		return func(h *harness) {
			h.kube.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("unknown")
			})
		}
	}
	change := func(change func(*corev1.PersistentVolume)) func(*harness) {
		return func(h *harness) {
			volume := localVolume("local-1", "host-1")
			change(volume)
			h.builtIn.Update(volumeResource, volume)
		}
	}
	terms := func(v *corev1.PersistentVolume) *[]corev1.NodeSelectorTerm {
		return &v.Spec.NodeAffinity.Required.NodeSelectorTerms
	}
	for name, put := range map[string]func(*harness){
		"the Node exists": func(h *harness) { h.builtIn.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "host-1"}}) },
		"another Node has the host name": func(h *harness) {
			h.builtIn.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "renamed", Labels: map[string]string{corev1.LabelHostname: "host-1"}}})
		},
		"there is no Node at all":    func(h *harness) { h.builtIn.Remove(nodeResource, "", "host-other") },
		"the volume is not read":     failing("get", "persistentvolumes"),
		"Nodes are not listed":       failing("list", "nodes"),
		"the Node is not read":       failing("get", "nodes"),
		"the volume does not exist":  func(h *harness) { h.builtIn.Remove(volumeResource, "", "local-1") },
		"every Node uses the volume": change(func(v *corev1.PersistentVolume) { v.Spec.NodeAffinity = nil }),
		"the Nodes of a zone use it": change(func(v *corev1.PersistentVolume) { (*terms(v))[0].MatchExpressions[0].Key = corev1.LabelTopologyZone }),
		"all Nodes but one use it": change(func(v *corev1.PersistentVolume) {
			(*terms(v))[0].MatchExpressions[0].Operator = corev1.NodeSelectorOpNotIn
		}),
		"other Nodes may use it, too": change(func(v *corev1.PersistentVolume) { *terms(v) = append(*terms(v), corev1.NodeSelectorTerm{}) }),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, replaceAfter(1))
			before := h.claimUIDs()
			h.loseNode(1)
			put(h)
			for range 20 {
				h.show()
				_, _ = h.syncStale(t.Context())
				h.runStatefulSet()
				h.advance(period)
			}
			assert.Equal(t, before, h.claimUIDs())
			assert.Equal(t, "True AsExpected", reason(h.cluster().Status, v1alpha1.ConditionVolumesAvailable))
		})
	}
}

// A claim whose volume was deleted is lost, whatever the volume was.
func TestAClaimWithoutItsVolumeIsLost(t *testing.T) {
	h := newHarness(t, replaceAfter(1))
	before := h.claimUIDs()
	h.loseNode(1)
	h.builtIn.Remove(volumeResource, "", "local-1")
	h.changeClaim(1, func(claim *corev1.PersistentVolumeClaim) { claim.Status.Phase = corev1.ClaimLost })
	for range 3 {
		h.settle()
	}
	assert.NotEqual(t, before["data-demo-1"], h.claimUIDs()["data-demo-1"])
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
}

// If only the claim could be deleted, the Pod is deleted later, and not while a copy is missing. The claim exists
// until then, because the Pod uses it.
func TestAReplacementContinuesAfterAFailure(t *testing.T) {
	h := newHarness(t, nil)
	h.changeClaim(0, func(claim *corev1.PersistentVolumeClaim) {
		claim.Finalizers = []string{protection}
		requestReplacement(claim)
	})
	h.pass()
	h.builtIn.Fail("delete pods demo-0", errors.New("refused"))
	h.show()
	_, err := h.syncStale(t.Context())
	require.ErrorContains(t, err, "delete Pod demo-0, to replace its volume claim data-demo-0: refused")
	require.NotNil(t, h.claim(0).DeletionTimestamp)
	h.builtIn.Fail("delete pods demo-0", nil)
	h.under = 1
	h.writes()
	h.settle()
	assert.NotContains(t, h.writes(), "delete pods demo-0")
	assert.Contains(t, h.set().Annotations, v1alpha1.AnnotationReplacing)
	assert.Equal(t, "False Underreplicated", reason(h.cluster().Status, v1alpha1.ConditionVolumesAvailable))
	h.under = 0
	h.settle()
	assert.Contains(t, h.writes(), "delete pods demo-0")
}

// deleteClaim deletes the claim of a node as a user does: it exists, with its volume, until its Pod ends.
func (h *harness) deleteClaim(ordinal int32) {
	h.t.Helper()
	h.changeClaim(ordinal, func(claim *corev1.PersistentVolumeClaim) {
		claim.Finalizers, claim.DeletionTimestamp = []string{protection}, ptr.To(metav1.NewTime(h.clock.Now()))
	})
}

// A claim that a user deletes is deleted, with its volume, when its Pod ends. No update ends the Pod before every copy
// is elsewhere.
func TestAClaimThatAUserDeletes(t *testing.T) {
	h := newHarness(t, nil)
	before := h.processes()
	h.deleteClaim(2)
	h.change(imaged("new"))
	for range 20 { // data moves all the time
		h.moved++
		h.pass()
	}
	require.Equal(t, before, h.processes())
	assert.Equal(t, "False Repairing", reason(h.cluster().Status, v1alpha1.ConditionVolumesAvailable))
	h.events()
	for range 6 {
		h.settle()
	}
	assert.Nil(t, h.claim(2).DeletionTimestamp)
	assert.Equal(t, []string{"new", "new", "new"}, h.revisions())
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
	assert.Contains(t, h.events(), "Normal VolumeReplaced Deleted Pod demo-2, whose volume claim is being deleted")

	// A removal needs no replacement before it.
	removed := newHarness(t, sized(4))
	removed.deleteClaim(3)
	removed.change(sized(3))
	assert.Equal(t, []int32{4, 3}, removed.sizes(20))
}

// With one copy the Pod never ends: neither an update nor a repair deletes the only copy, nor does a larger factor, which
// the nodes have only after an update. When the claim is another one of the same volume, everything goes on.
func TestAClaimWithTheOnlyCopyThatAUserDeletes(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"an update":         func(h *harness) { h.change(imaged("new")) },
		"a larger factor":   func(h *harness) { h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.ReplicationFactor = 2 }) },
		"a removal":         func(h *harness) { h.change(sized(2)) },
		"a repair":          func(h *harness) { h.crash(2); h.change(imaged("new")) },
		"a lost volume":     func(h *harness) { h.change(replaceAfter(1)); h.loseNode(1) },
		"a request as well": func(h *harness) { h.changeClaim(2, requestReplacement) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(c *v1alpha1.MarekvsCluster) { c.Spec.ReplicationFactor = 1 })
			for _, pod := range h.pods() {
				container := &pod.Spec.Containers[0]
				container.Env = append(container.Env, corev1.EnvVar{Name: "MAREKVS_REPLICAS_N", Value: "1"})
				h.builtIn.Update(podResource, &pod)
			}
			h.deleteClaim(2)
			change(h)
			before := h.processes()["demo-2"]
			for range 7 { // longer than progressDeadlineSeconds
				h.settle()
			}
			require.Equal(t, before, h.processes()["demo-2"])
			assert.NotNil(t, h.claim(2).DeletionTimestamp)
			status := h.cluster().Status
			assert.True(t, meta.IsStatusConditionFalse(status.Conditions, v1alpha1.ConditionVolumesAvailable))
			assert.Equal(t, v1alpha1.PhaseBlocked, status.Phase, "%+v", status)
			if name == "a lost volume" {
				return // which nothing brings back
			}
			h.changeClaim(2, func(claim *corev1.PersistentVolumeClaim) {
				claim.UID, claim.DeletionTimestamp, claim.Finalizers, claim.Annotations = "another", nil, nil, nil
			})
			h.change(sized(3))
			for range 8 {
				h.settle()
			}
			assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase, "%+v", h.cluster().Status)
			assert.Equal(t, "True AsExpected", reason(h.cluster().Status, v1alpha1.ConditionRolledOut))
		})
	}
}

// A claim may be deleted at any time of an update: before its Pod is updated, or after, while the update waits.
func TestTheClaimOfAnUpdatedPodIsDeleted(t *testing.T) {
	for name, begin := range map[string]func(*harness){
		"it was replaced": func(h *harness) { h.crash(2) },
		"it was updated":  func(*harness) {},
	} {
		h := newHarness(t, nil)
		begin(h)
		h.change(imaged("new"))
		for range 40 {
			if h.revisions()[2] == "new" {
				break
			}
			h.pass()
		}
		require.Equal(t, []string{"i", "i", "new"}, h.revisions(), name)
		claim := h.claim(2).UID
		h.deleteClaim(2)
		h.under = 7
		for range 3 {
			requeue, err := h.syncFresh()
			require.NoError(t, err)
			require.Equal(t, period, requeue, "%s: the cache is not older than the API server", name)
			h.runStatefulSet()
			h.advance(period)
		}
		assert.Equal(t, "False Underreplicated", reason(h.cluster().Status, v1alpha1.ConditionVolumesAvailable), name)
		h.under = 0
		for range 8 {
			h.settle()
		}
		assert.NotEqual(t, claim, h.claim(2).UID, name)
		assert.Equal(t, []string{"new", "new", "new"}, h.revisions(), name)
		assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase, "%s: %+v", name, h.cluster().Status)
	}
}

// An eviction ends a Pod whatever the copies. While that would delete a volume, the budget allows none.
func TestNoPodIsEvictedWhileThatDeletesItsVolume(t *testing.T) {
	h := newHarness(t, sized(4))
	evictions := func() int {
		object, err := h.kube.Tracker().Get(budgetResource, "ns", "demo")
		require.NoError(t, err)
		return object.(*policyv1.PodDisruptionBudget).Spec.MaxUnavailable.IntValue()
	}
	require.Equal(t, 1, evictions())
	h.under = 1
	h.deleteClaim(3)
	h.pass()
	assert.Equal(t, 0, evictions())
	h.under = 0
	for range 6 {
		h.settle()
	}
	assert.Nil(t, h.claim(3).DeletionTimestamp)
	assert.Equal(t, 1, evictions())

	// The claim of a removed node has no Pod.
	h.change(sized(3))
	h.settle()
	require.Equal(t, []int32{3}, h.sizes(10))
	h.deleteClaim(3)
	h.pass()
	assert.Equal(t, 1, evictions())
}
