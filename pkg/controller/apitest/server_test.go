// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package apitest_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller/apitest"
	marekvsac "nstance.dev/operator/pkg/generated/applyconfiguration/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/generated/clientset/versioned/fake"
	ourscheme "nstance.dev/operator/pkg/generated/clientset/versioned/scheme"
)

var force = metav1.ApplyOptions{FieldManager: "test", Force: true}

// set returns a StatefulSet to apply.
func set(replicas, partition int32, image string) *appsv1ac.StatefulSetApplyConfiguration {
	return appsv1ac.StatefulSet("demo", "ns").
		WithLabels(map[string]string{"app": "demo"}).
		WithOwnerReferences(metav1ac.OwnerReference().WithAPIVersion("v1").WithKind("ConfigMap").WithName("owner").WithUID("1")).
		WithSpec(appsv1ac.StatefulSetSpec().
			WithReplicas(replicas).
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{"app": "demo"})).
			WithUpdateStrategy(appsv1ac.StatefulSetUpdateStrategy().WithType(appsv1.RollingUpdateStatefulSetStrategyType).
				WithRollingUpdate(appsv1ac.RollingUpdateStatefulSetStrategy().WithPartition(partition))).
			WithTemplate(corev1ac.PodTemplateSpec().
				WithLabels(map[string]string{"app": "demo"}).
				WithSpec(corev1ac.PodSpec().WithContainers(corev1ac.Container().WithName("c").WithImage(image)))))
}

// An apply of the only writer of fields has the same result with and without the management of fields: what it no longer
// has is removed, what other writers have written elsewhere stays, and nothing changes if nothing differs.
func TestApplyOfASoleWriter(t *testing.T) {
	managed, sole := kubefake.NewClientset(), kubefake.NewSimpleClientset()
	servers := []*apitest.Server{apitest.NewServer(t, managed), apitest.NewServer(t, sole)}
	servers[1].Sole = scheme.Scheme
	resource := appsv1.SchemeGroupVersion.WithResource("statefulsets")
	var versions [2]string
	for number, step := range []*appsv1ac.StatefulSetApplyConfiguration{
		set(3, 3, "a"),
		set(3, 3, "a"),
		set(4, 3, "a").WithAnnotations(map[string]string{"a": "1", "b": "2"}),
		set(4, 2, "b").WithAnnotations(map[string]string{"b": "3"}),
		set(4, 2, "b").WithLabels(map[string]string{"extra": "x"}),
		set(4, 2, "b"),
		set(4, 2, "b"),
	} {
		var results [2]*appsv1.StatefulSet
		var unchanged [2]bool
		for i, client := range []*kubefake.Clientset{managed, sole} {
			written, err := client.AppsV1().StatefulSets("ns").Apply(t.Context(), step, force)
			require.NoError(t, err)
			unchanged[i] = written.ResourceVersion == versions[i]
			stored, err := client.AppsV1().StatefulSets("ns").Get(t.Context(), "demo", metav1.GetOptions{})
			require.NoError(t, err)
			assert.Equal(t, stored.ResourceVersion, written.ResourceVersion)
			results[i] = stored.DeepCopy()
			results[i].ManagedFields, results[i].TypeMeta, results[i].UID, results[i].ResourceVersion = nil, metav1.TypeMeta{}, "", ""
			stored.Status.Replicas++ // the StatefulSet controller
			servers[i].Update(resource, stored)
			stored, err = client.AppsV1().StatefulSets("ns").Get(t.Context(), "demo", metav1.GetOptions{})
			require.NoError(t, err)
			versions[i] = stored.ResourceVersion
		}
		assert.Equal(t, results[0], results[1], "step %d", number)
		assert.Equal(t, unchanged[0], unchanged[1], "step %d", number)
	}
}

// So has the apply of a status.
func TestApplyOfAStatusByASoleWriter(t *testing.T) {
	managed, sole := fake.NewClientset(), fake.NewSimpleClientset()
	servers := []*apitest.Server{apitest.NewServer(t, managed), apitest.NewServer(t, sole)}
	servers[1].Sole = ourscheme.Scheme
	for _, server := range servers {
		server.Add(&v1alpha1.MarekvsCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo"}, Spec: v1alpha1.MarekvsClusterSpec{Image: "i"}})
	}
	condition := func(kind, message string) *metav1ac.ConditionApplyConfiguration {
		return metav1ac.Condition().WithType(kind).WithStatus(metav1.ConditionTrue).WithReason("R").WithMessage(message)
	}
	for number, status := range []*marekvsac.MarekvsClusterStatusApplyConfiguration{
		marekvsac.MarekvsClusterStatus().WithPhase(v1alpha1.PhaseReconciling).WithReplicas(3).WithConditions(condition("A", "a"), condition("B", "b")),
		marekvsac.MarekvsClusterStatus().WithPhase(v1alpha1.PhaseHealthy).WithReplicas(3).WithOpsPerSecond("1.0").WithConditions(condition("A", "other")),
		marekvsac.MarekvsClusterStatus().WithPhase(v1alpha1.PhaseHealthy).WithReplicas(3).WithConditions(condition("A", "other")),
	} {
		var results [2]*v1alpha1.MarekvsCluster
		for i, client := range []*fake.Clientset{managed, sole} {
			written, err := client.MarekvsV1alpha1().MarekvsClusters("ns").ApplyStatus(t.Context(), marekvsac.MarekvsCluster("demo", "ns").WithStatus(status), force)
			require.NoError(t, err)
			results[i] = written.DeepCopy()
			results[i].ManagedFields, results[i].TypeMeta, results[i].UID, results[i].ResourceVersion = nil, metav1.TypeMeta{}, "", ""
		}
		assert.Equal(t, results[0], results[1], "step %d", number)
		assert.Equal(t, "i", results[1].Spec.Image)
	}
}
