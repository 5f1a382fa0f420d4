// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// testRestricted applies manifests/operator without the overlay: its namespace accepts
// restricted Pods only, and the Deployment's are.
func testRestricted(t *testing.T, n *Installation, client kubernetes.Interface) {
	require.NoError(t, n.Apply(t.Context(), filepath.Join(n.options.Manifests, "operator")))
	t.Cleanup(func() {
		assert.NoError(t, n.applyOperator(context.WithoutCancel(t.Context()), overlay))
	})
	selector := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=nstance-operator"}
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		pods, err := client.CoreV1().Pods(Namespace).List(ctx, selector)
		return err == nil && len(pods.Items) == 2, err
	})
	require.NoError(t, err, "waiting for two Pods")

	unrestricted := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "unrestricted"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
	_, err = client.CoreV1().Pods(Namespace).Create(t.Context(), unrestricted, metav1.CreateOptions{})
	assert.True(t, apierrors.IsForbidden(err), "a Pod that may run as root: %v", err)
}
