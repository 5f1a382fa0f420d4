// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package marekvs

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/marekvsoperator"
	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

const (
	benchClusters, benchNodes = 100, 8
	// quietTime is for how long nothing may be written, and observedTime how long an operator
	// runs before that: its rates are known, and no condition changes any more.
	quietTime, observedTime = 5 * time.Minute, 2 * time.Minute
	// benchResident is the most memory that the operator may ever have resident, in MiB.
	benchResident = 64
)

// BenchmarkClusters measures an operator with 100 clusters of 8 nodes at a constant load: its
// memory, and how many objects it writes in five minutes.
func BenchmarkClusters(b *testing.B) {
	clusters := env.marekvs.MarekvsV1alpha1().MarekvsClusters(namespace)
	for n := range benchClusters {
		name := fmt.Sprintf("bench-%d", n)
		env.store.SetRate(name, 10_000)
		_, err := clusters.Create(b.Context(), &v1alpha1.MarekvsCluster{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.MarekvsClusterSpec{Image: "marekvs:1", Nodes: benchNodes, ReplicationFactor: 2},
		}, metav1.CreateOptions{})
		require.NoError(b, err)
	}
	untilAllHealthy(b)
	// The operators of the tests have shorter intervals than the default.
	for _, operator := range env.operators {
		require.NoError(b, operator.Stop(b.Context()))
	}
	root, err := controlplane.FindRoot(".")
	require.NoError(b, err)
	for b.Loop() {
		operator, err := marekvsoperator.Start(b.Context(), env.controlPlane, marekvsoperator.Options{
			Name: "operator-bench", Program: filepath.Join(root, "e2e", ".cache", "marekvs-operator"), Dir: b.TempDir(), MetricsPort: env.store.Port,
			Flags: []string{"--sync-period", "10s", "--rate-window", "10s", "--settle-time", "30s"},
		})
		require.NoError(b, err)
		<-time.After(observedTime)
		untilAllHealthy(b)
		before := versions(b)
		<-time.After(quietTime)
		after := versions(b)
		resident, peak, err := operator.Memory()
		require.NoError(b, err)
		maps.DeleteFunc(after, func(object, version string) bool { return before[object] == version })
		for object := range after {
			b.Logf("%s was written", object)
		}
		if peak > benchResident {
			b.Errorf("the operator had %.0f MiB resident, want at most %d", peak, benchResident)
		}
		if len(after) > 0 {
			b.Errorf("%d objects were written in %s, want none", len(after), quietTime)
		}
		b.ReportMetric(resident, "MiB-resident")
		b.ReportMetric(peak, "MiB-peak")
		b.ReportMetric(float64(len(after)), "writes")
		require.NoError(b, operator.Stop(b.Context()))
	}
}

// untilAllHealthy waits until every cluster has its nodes.
func untilAllHealthy(b *testing.B) {
	b.Helper()
	healthyClusters := func(ctx context.Context) (count int, err error) {
		list, err := env.marekvs.MarekvsV1alpha1().MarekvsClusters(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return 0, err
		}
		for i := range list.Items {
			if healthy(benchNodes)(&list.Items[i]) {
				count++
			}
		}
		return count, nil
	}
	count := 0
	err := wait.PollUntilContextTimeout(b.Context(), time.Second, 20*time.Minute, true, func(ctx context.Context) (done bool, err error) {
		count, err = healthyClusters(ctx)
		return count == benchClusters, err
	})
	require.NoError(b, err, "%d clusters are healthy", count)
}

// versions returns the resource versions of the clusters and of their objects.
func versions(b *testing.B) map[string]string {
	b.Helper()
	all := map[string]string{}
	add := func(kind string, object metav1.Object) { all[kind+" "+object.GetName()] = object.GetResourceVersion() }
	clusters, err := env.marekvs.MarekvsV1alpha1().MarekvsClusters(namespace).List(b.Context(), metav1.ListOptions{})
	require.NoError(b, err)
	for i := range clusters.Items {
		add("MarekvsCluster", &clusters.Items[i])
	}
	sets, err := env.kube.AppsV1().StatefulSets(namespace).List(b.Context(), metav1.ListOptions{})
	require.NoError(b, err)
	for i := range sets.Items {
		add("StatefulSet", &sets.Items[i])
	}
	services, err := env.kube.CoreV1().Services(namespace).List(b.Context(), metav1.ListOptions{})
	require.NoError(b, err)
	for i := range services.Items {
		add("Service", &services.Items[i])
	}
	budgets, err := env.kube.PolicyV1().PodDisruptionBudgets(namespace).List(b.Context(), metav1.ListOptions{})
	require.NoError(b, err)
	for i := range budgets.Items {
		add("PodDisruptionBudget", &budgets.Items[i])
	}
	require.Len(b, sets.Items, benchClusters)
	return all
}
