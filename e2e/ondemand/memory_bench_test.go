// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/testcluster"
)

// BenchmarkMemoryWithManyPods measures the memory of an operator that is started in
// a cluster with 150,000 Pods that request no machine. It does not delete them, so
// it must be the last benchmark.
func BenchmarkMemoryWithManyPods(b *testing.B) {
	const pods = 150_000
	// limit is the most resident memory that the operator may have, in MiB.
	const limit = 300
	testcluster.Eventually(b, time.Minute, "Pods can be created", func(ctx context.Context) error {
		_, err := env.Kube.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	for b.Loop() {
		var creating errgroup.Group
		creating.SetLimit(32)
		for i := range pods {
			creating.Go(func() error {
				_, err := env.Kube.CoreV1().Pods("default").Create(b.Context(), bystander(i), metav1.CreateOptions{})
				return err
			})
		}
		require.NoError(b, creating.Wait())
		operator := env.OperatorProcess()
		require.NoError(b, operator.Kill(b.Context()))
		require.NoError(b, operator.Start(b.Context()))
		resident, peak, err := operator.Memory()
		require.NoError(b, err)
		if peak > limit {
			b.Errorf("the operator had %.0f MiB resident, want at most %d", peak, limit)
		}
		b.ReportMetric(resident, "MiB-with-150000-Pods")
		b.ReportMetric(peak, "MiB-peak")
	}
}

// bystander returns a Pod that no scheduler schedules.
func bystander(i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:   fmt.Sprintf("bystander-%d", i),
			Labels: map[string]string{"app.kubernetes.io/name": "bystander", "app.kubernetes.io/instance": fmt.Sprint(i)},
		},
		Spec: corev1.PodSpec{
			SchedulerName: "none",
			Containers:    []corev1.Container{{Name: "main", Image: "example.com/bystander:1.0.0"}},
		},
	}
}
