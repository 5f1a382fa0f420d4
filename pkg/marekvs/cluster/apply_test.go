// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/marekvs/children"
)

const (
	applyHeadless = "apply services demo-headless"
	applyClient   = "apply services demo"
	applyBudget   = "apply poddisruptionbudgets demo"
	applySet      = "apply statefulsets demo"
	writeStatus   = "apply marekvsclusters/status demo"
)

// Every child is created with the labels of the cluster, which owns it, by server-side apply.
func TestChildrenAreApplied(t *testing.T) {
	h := newEmpty(t, nil)
	h.expect(applyHeadless, applyClient, applyBudget, applySet, writeStatus)
	h.runStatefulSet()
	h.show()
	objects := []any{h.set()}
	for _, store := range []interface{ List() []any }{h.Informers.Services.GetStore(), h.Informers.Budgets.GetStore()} {
		objects = append(objects, store.List()...)
	}
	require.Len(t, objects, 4)
	for _, obj := range objects {
		object := obj.(metav1.Object)
		assert.True(t, metav1.IsControlledBy(object, h.cluster()), object.GetName())
		require.NotEmpty(t, object.GetManagedFields(), object.GetName())
		applied := object.GetManagedFields()[0]
		assert.Equal(t, "marekvs-operator Apply", applied.Manager+" "+string(applied.Operation), object.GetName())
	}
}

// A cluster that does not change is not written, whatever its nodes execute.
func TestAQuietClusterIsNotWritten(t *testing.T) {
	h := newHarness(t, nil)
	h.rate = 20_000
	h.settle() // the rate is published
	h.writes()
	for range 30 { // 5 minutes
		h.expect()
		h.advance(period)
	}
	assert.Empty(t, h.events())
}

// Another operator applies each child once after its start, because it does not know what
// was applied last, and then writes nothing.
func TestANewOperatorAppliesEachChildOnce(t *testing.T) {
	h := newHarness(t, nil)
	before := h.set()
	h.instance = h.newInstance(h.kube, h.nodes)
	h.expect(applyHeadless, applyClient, applyBudget, applySet, writeStatus)
	assert.Equal(t, before.ResourceVersion, h.set().ResourceVersion, "which changes nothing")
	h.settle()
	h.writes()
	h.expect()
}

// The operator applies only the child that differs.
func TestOnlyWhatDiffersIsWritten(t *testing.T) {
	h := newHarness(t, nil)
	service, err := h.kube.Tracker().Get(serviceResource, "ns", "demo")
	require.NoError(t, err)
	changed := service.(*corev1.Service).DeepCopy()
	changed.Spec.Selector = map[string]string{"app": "other"}
	h.builtIn.Update(serviceResource, changed)
	h.expect(applyClient)
	service, err = h.kube.Tracker().Get(serviceResource, "ns", "demo")
	require.NoError(t, err)
	assert.Equal(t, children.Labels("demo"), service.(*corev1.Service).Spec.Selector)

	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.ReplicationFactor = 1 })
	h.expect(applySet, writeStatus)
}

// The StatefulSet controller never deletes a claim, whatever another writer sets: the claims of removed nodes are kept until
// every copy exists elsewhere.
func TestTheStatefulSetKeepsItsClaims(t *testing.T) {
	h := newHarness(t, nil)
	set := h.set()
	set.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
		WhenScaled: appsv1.DeletePersistentVolumeClaimRetentionPolicyType, WhenDeleted: appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
	}
	h.builtIn.Update(setResource, set)
	h.step()
	assert.Equal(t, &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
		WhenScaled: appsv1.RetainPersistentVolumeClaimRetentionPolicyType, WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
	}, h.set().Spec.PersistentVolumeClaimRetentionPolicy)
}

// A child that was deleted is created again.
func TestADeletedChildIsCreatedAgain(t *testing.T) {
	h := newHarness(t, nil)
	h.builtIn.Remove(serviceResource, "ns", "demo-headless")
	h.expect(applyHeadless)
	h.builtIn.Remove(budgetResource, "ns", "demo")
	h.expect(applyBudget)
	h.builtIn.Remove(setResource, "ns", "demo")
	h.expect(applySet, writeStatus)
	assert.Equal(t, int32(3), *h.set().Spec.Replicas)
}

// Every apply of the StatefulSet has the size.
func TestTheSizeIsPartOfEveryApply(t *testing.T) {
	h := newHarness(t, func(c *v1alpha1.MarekvsCluster) { c.Spec.Nodes = 4 })
	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Image = "new" })
	for range 40 {
		h.pass()
		require.Equal(t, int32(4), *h.set().Spec.Replicas)
	}
	for _, pod := range h.pods() {
		assert.Equal(t, "new", pod.Labels["controller-revision-hash"], pod.Name)
	}
}

// A StatefulSet that another client changed after it was read is not written.
func TestAChangedStatefulSetIsNotOverwritten(t *testing.T) {
	h := newHarness(t, nil)
	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Nodes = 5 })
	h.show()
	other := h.set()
	other.Annotations["other"] = "1"
	h.builtIn.Update(setResource, other)
	requeue, err := h.syncStale(t.Context())
	require.NoError(t, err)
	assert.Equal(t, controller.StaleRetry, requeue, "a conflict is no error")
	assert.Equal(t, []string{applySet}, h.writes(), "refused")
	assert.Equal(t, int32(3), *h.set().Spec.Replicas)
	h.expect(applySet, writeStatus)
	assert.Equal(t, int32(5), *h.set().Spec.Replicas)
}

// A sync waits until the cache has the last write.
func TestAStaleCacheIsNotSynced(t *testing.T) {
	h := newHarness(t, nil)
	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Nodes = 5 })
	h.expect(applySet, writeStatus)
	for _, want := range []time.Duration{controller.StaleRetry, 2 * controller.StaleRetry, 4 * controller.StaleRetry} {
		requeue, err := h.syncStale(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, requeue)
		assert.Empty(t, h.writes())
	}
}

// If the cache stays stale, the delay grows, because each sync also scrapes the nodes.
func TestALiveReadThatDiffersIsRepeatedSlowly(t *testing.T) {
	h := newHarness(t, sized(4))
	h.change(sized(3))
	h.show()
	h.builtIn.Remove(podResource, "ns", h.pods()[0].Name)
	for _, want := range []time.Duration{controller.StaleRetry, 2 * controller.StaleRetry, 4 * controller.StaleRetry} {
		requeue, err := h.syncStale(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, requeue)
	}
	assert.Empty(t, h.events(), "no removal was written")
}

// A StatefulSet that the cache does not have yet is not created again: its size, its partition and
// the times of its changes would be lost.
func TestAStatefulSetThatExistsIsNotCreated(t *testing.T) {
	h := newHarness(t, nil)
	h.change(sized(5))
	h.settle()
	h.writes()
	before := h.set()
	h.instance = h.newInstance(h.kube, h.nodes)
	h.show()
	require.NoError(t, h.Informers.StatefulSets.GetIndexer().Replace(nil, "1"))
	requeue, err := h.syncStale(t.Context())
	require.NoError(t, err)
	assert.Equal(t, controller.StaleRetry, requeue)
	assert.Equal(t, []string{applyHeadless, applyClient, applyBudget}, h.writes())
	assert.Equal(t, before.ResourceVersion, h.set().ResourceVersion)
}

// An object with the name of a child that the cluster does not control is neither changed
// nor used. The condition names it, and the operator does not write in every sync.
func TestObjectsOfOthersAreLeftAlone(t *testing.T) {
	h := newEmpty(t, nil)
	owner := &v1alpha1.MarekvsCluster{ObjectMeta: metav1.ObjectMeta{Name: "x", UID: "other"}}
	others := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "demo-headless", Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagerName},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.ClusterKind))},
	}}
	h.builtIn.Add(others)
	h.expect(applyClient, applyBudget, writeStatus)
	assert.Nil(t, h.set())
	status := h.cluster().Status
	assert.Equal(t, "False NameConflict", reason(status, v1alpha1.ConditionOwned))
	assert.Contains(t, status.Message, "Service demo-headless exists")
	assert.Equal(t, []string{"Warning NameConflict Service demo-headless exists and is not controlled by this cluster."}, h.events())
	h.expect()
	h.builtIn.Remove(serviceResource, "ns", "demo-headless")
	h.settle()
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
}

// A cluster that is being deleted is left to the garbage collector.
func TestAClusterThatIsBeingDeletedIsNotWritten(t *testing.T) {
	h := newHarness(t, reclaiming)
	h.change(func(c *v1alpha1.MarekvsCluster) {
		deleted := metav1.NewTime(h.clock.Now())
		c.DeletionTimestamp, c.Finalizers = &deleted, []string{"foregroundDeletion"}
		c.Spec.Nodes, c.Spec.Image = 3, "new"
	})
	h.builtIn.Remove(budgetResource, "ns", "demo")
	h.expect()
}

// An error of the API server is returned, so that the queue retries with a growing delay;
// it is on the status, and one event.
func TestAnErrorIsReportedOnce(t *testing.T) {
	h := newHarness(t, nil)
	h.builtIn.Fail(applyBudget, apierrors.NewInternalError(errors.New("broken")))
	h.builtIn.Remove(budgetResource, "ns", "demo")
	for range 3 {
		h.show()
		_, err := h.syncStale(t.Context())
		require.ErrorContains(t, err, "apply PodDisruptionBudget demo")
	}
	assert.Equal(t, []string{applyBudget, applyBudget, applyBudget, writeStatus}, h.writes())
	assert.Equal(t, "False ApplyFailed", reason(h.cluster().Status, v1alpha1.ConditionReconciled))
	recorded := h.events()
	require.Len(t, recorded, 1)
	assert.Contains(t, recorded[0], "Warning ApplyFailed apply PodDisruptionBudget demo")
	h.builtIn.Fail(applyBudget, nil)
	h.expect(applyBudget, writeStatus)
	assert.Equal(t, "True AsExpected", reason(h.cluster().Status, v1alpha1.ConditionReconciled))
}

// A StatefulSet with the name of the cluster that the cluster does not control keeps its
// size, template and volumes, whether or not the cache has it.
func TestAStatefulSetOfOthersIsLeftAlone(t *testing.T) {
	other := &v1alpha1.MarekvsCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", UID: "other"}}
	for name, change := range map[string]func(*appsv1.StatefulSet){
		"without an owner": func(*appsv1.StatefulSet) {},
		"of an earlier cluster of this name": func(set *appsv1.StatefulSet) {
			set.Labels = map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagerName}
			set.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(other, v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.ClusterKind))}
		},
		"with the label and without an owner": func(set *appsv1.StatefulSet) {
			set.Labels = map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagerName}
		},
	} {
		h := newEmpty(t, func(c *v1alpha1.MarekvsCluster) {
			c.Spec.ReclaimPvcs, c.Spec.ReclaimAfterSeconds = true, 1
		})
		set := &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo"},
			Spec:       appsv1.StatefulSetSpec{Replicas: ptr.To[int32](1)},
		}
		change(set)
		h.builtIn.Add(set)
		h.builtIn.Add(newClaim(5))
		before := h.set()
		h.expect(applyHeadless, applyClient, applyBudget, writeStatus)
		status := h.cluster().Status
		assert.Equal(t, "False NameConflict", reason(status, v1alpha1.ConditionOwned), name)
		assert.Equal(t, "StatefulSet demo exists and is not controlled by this cluster.", conditionOf(h, v1alpha1.ConditionOwned).Message, name)
		assert.Equal(t, "False NameConflict", reason(status, v1alpha1.ConditionReconciled), name)
		assert.NotEqual(t, v1alpha1.PhaseHealthy, status.Phase, name)
		assert.Equal(t, []string{"Warning NameConflict StatefulSet demo exists and is not controlled by this cluster."}, h.events(), name)
		h.advance(period)
		h.expect()
		assert.Equal(t, before, h.set(), name)
		assert.Equal(t, []string{"data-demo-5"}, h.claimNames(), name)

		h.builtIn.Remove(setResource, "ns", "demo")
		h.expect(applySet, writeStatus)
		assert.Equal(t, "True AsExpected", reason(h.cluster().Status, v1alpha1.ConditionOwned), name)
		assert.Equal(t, int32(6), *h.set().Spec.Replicas, "%s: the nodes that have volumes", name)
	}
}
