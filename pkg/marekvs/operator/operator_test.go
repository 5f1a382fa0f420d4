// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The fields that the operator reads are kept, and large fields are dropped.
func TestTrim(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "demo-0", UID: "1", ResourceVersion: "2", Labels: map[string]string{"app": "demo"},
			Annotations: map[string]string{"large": "x"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
			OwnerReferences: []metav1.OwnerReference{{UID: "set"}},
		},
		Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{
			Name: "marekvs", Image: "large", Env: []corev1.EnvVar{{Name: "MAREKVS_REPLICAS_N", Value: "2"}, {Name: "OTHER", Value: "large"}},
		}}},
		Status: corev1.PodStatus{
			PodIP: "10.0.0.1", Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
			},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "marekvs", RestartCount: 3, ImageID: "large",
				State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: "large"}}}},
		},
	}
	trimmed, err := trim(pod)
	require.NoError(t, err)
	assert.Equal(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "demo-0", UID: "1", ResourceVersion: "2", Labels: map[string]string{"app": "demo"},
			OwnerReferences: []metav1.OwnerReference{{UID: "set"}},
		},
		Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{
			Name: "marekvs", Env: []corev1.EnvVar{{Name: "MAREKVS_REPLICAS_N", Value: "2"}},
		}}},
		Status: corev1.PodStatus{
			PodIP: "10.0.0.1", Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "marekvs", RestartCount: 3,
				State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}},
		},
	}, trimmed)
}

func TestEachWarningIsLoggedOnce(t *testing.T) {
	w := &warnings{}
	assert.True(t, w.first(299, "deprecated"))
	assert.False(t, w.first(299, "deprecated"))
	assert.True(t, w.first(299, "other"))
	assert.False(t, w.first(199, "no warning of the API server"))
}
