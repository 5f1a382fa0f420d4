// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
)

// SaveConfigMap returns a function that restores a ConfigMap.
func (c *Cluster) SaveConfigMap(t testing.TB, name string) (restore func()) {
	t.Helper()
	client := c.Kube.CoreV1().ConfigMaps(installation.Namespace)
	saved, err := client.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return func() {
		t.Helper()
		ctx := context.WithoutCancel(t.Context())
		saved.ObjectMeta = metav1.ObjectMeta{Name: saved.Name, Namespace: saved.Namespace, Labels: saved.Labels}
		_, err := client.Update(ctx, saved, metav1.UpdateOptions{})
		if err != nil {
			_, err = client.Create(ctx, saved, metav1.CreateOptions{})
		}
		require.NoError(t, err)
	}
}

// EditShards changes the shards in the operator's configuration.
func (c *Cluster) EditShards(t testing.TB, change func(map[string]string)) {
	t.Helper()
	client := c.Kube.CoreV1().ConfigMaps(installation.Namespace)
	shards, err := client.Get(t.Context(), "nstance-shards", metav1.GetOptions{})
	require.NoError(t, err)
	change(shards.Data)
	_, err = client.Update(t.Context(), shards, metav1.UpdateOptions{})
	require.NoError(t, err)
}
