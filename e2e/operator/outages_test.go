// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/require"
)

// saveConfigMap returns a function that restores a ConfigMap.
func saveConfigMap(t *testing.T, name string) (restore func()) {
	t.Helper()
	client := env.Kube.CoreV1().ConfigMaps(installation.Namespace)
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

// saveSecret returns a function that creates a Secret again.
func saveSecret(t *testing.T, name string) (restore func()) {
	t.Helper()
	client := env.Kube.CoreV1().Secrets(installation.Namespace)
	saved, err := client.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return func() {
		t.Helper()
		saved.ObjectMeta = metav1.ObjectMeta{Name: saved.Name, Namespace: saved.Namespace, Labels: saved.Labels}
		_, err := client.Create(context.WithoutCancel(t.Context()), saved, metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

func deleteConfigMap(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, env.Kube.CoreV1().ConfigMaps(installation.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// editShards changes the shards in the operator's configuration.
func editShards(t *testing.T, change func(map[string]string)) {
	t.Helper()
	client := env.Kube.CoreV1().ConfigMaps(installation.Namespace)
	shards, err := client.Get(t.Context(), "nstance-shards", metav1.GetOptions{})
	require.NoError(t, err)
	change(shards.Data)
	_, err = client.Update(t.Context(), shards, metav1.UpdateOptions{})
	require.NoError(t, err)
}

// outage is a reason why a shard does not answer, until end is called or the test is
// over.
type outage struct {
	name  string
	begin func(*testing.T, *controlplane.Component) (end func())
}

var (
	allUp = outage{name: "all shards up"}
	down  = outage{"a shard down", func(t *testing.T, shard *controlplane.Component) func() {
		t.Helper()
		require.NoError(t, shard.Kill(t.Context()))
		end := sync.OnceFunc(func() { testcluster.Start(t, shard) })
		t.Cleanup(end)
		return end
	}}
	hanging = outage{"a shard hanging", func(t *testing.T, shard *controlplane.Component) func() {
		t.Helper()
		return testcluster.Freeze(t, shard)
	}}
)
