// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// A StatefulSet of the cluster's name that it does not control keeps its size, its template and
// its volumes, whether the cache has it or not.
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
		h := newEmpty(t, func(c *v1alpha1.MarekvsCluster) { c.Spec.ReclaimPvcs = true })
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
