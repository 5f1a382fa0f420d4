// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

// TestKubernetesClusterIsReadAgain until the API server answers.
func TestKubernetesClusterIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "cluster-1"}})
		failures := 3
		client.PrependReactor("get", "namespaces", func(kubetesting.Action) (bool, runtime.Object, error) {
			failures--
			return failures >= 0, nil, errors.New("connection refused")
		})
		uid, err := kubernetesCluster(t.Context(), client)
		require.NoError(t, err)
		assert.Equal(t, "cluster-1", uid)
		assert.Len(t, client.Actions(), 4)
	})
}

func TestKubernetesClusterMustBeReadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("get", "namespaces", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(corev1.Resource("namespaces"), "kube-system", errors.New("no rule"))
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := kubernetesCluster(ctx, client)
		assert.ErrorContains(t, err, "read the UID of the namespace kube-system")
		assert.True(t, apierrors.IsForbidden(err))
		assert.Len(t, client.Actions(), 1)
	})
}
