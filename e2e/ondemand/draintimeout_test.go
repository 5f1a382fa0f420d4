// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The machine of a Pod is deleted with the Pod, also when another Pod runs there whose
// disruption budget never allows an eviction.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	const namespace = "stuck"
	watchOperator(t)
	newNamespace(t, namespace)
	owner := newPod(namespace, "owner")
	owner.Annotations[v1beta1.AnnotationOnDemandDrainTimeout] = "10s"
	owner = createPod(t, owner)
	m := untilRuns(t, owner)

	guest := newPod(namespace, "guest")
	guest.Annotations, guest.Labels = nil, map[string]string{"app": "guest"}
	guest.Spec.NodeSelector, guest.Spec.NodeName = nil, m.node
	createPod(t, guest)
	_, err := env.Kube.PolicyV1().PodDisruptionBudgets(namespace).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "guest"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector:     &metav1.LabelSelector{MatchLabels: guest.Labels},
			MinAvailable: ptr.To(intstr.FromInt32(1)),
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	machine, err := env.Machines().Get(t.Context(), m.name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, ptr.To[int32](10), machine.Spec.Deletion.NodeDrainTimeoutSeconds, "the drain timeout")
	deletePod(t, owner)
	untilDeleted(t, m)
}
