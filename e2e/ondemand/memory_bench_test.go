// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
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
				pod := testcluster.NewUnrelatedPod("bystander", i)
				pod.Spec.SchedulerName = "none" // no scheduler has this name
				_, err := env.Kube.CoreV1().Pods("default").Create(b.Context(), pod, metav1.CreateOptions{})
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
