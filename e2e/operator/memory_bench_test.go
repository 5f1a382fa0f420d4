// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// BenchmarkMemory measures the operator's resident memory with 1,000 pools over
// three shards. It does not delete them, so it must be the last benchmark.
func BenchmarkMemory(b *testing.B) {
	const pools = 1000
	before := resident(b)
	for b.Loop() {
		var group errgroup.Group
		group.SetLimit(8)
		for i := range pools {
			group.Go(func() error { return tryCreatePool(b.Context(), fmt.Sprintf("many-%d", i), 0) })
		}
		if err := group.Wait(); err != nil {
			b.Fatal(err)
		}
		testcluster.Eventually(b, 15*time.Minute, "all pools are ready", func(ctx context.Context) error {
			list, err := env.NstanceMachinePools().List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			ready := 0
			for _, pool := range list.Items {
				if strings.HasPrefix(pool.Name, "many-") && meta.IsStatusConditionTrue(pool.Status.Conditions, v1beta1.ConditionReady) {
					ready++
				}
			}
			if ready < pools {
				return fmt.Errorf("%d of %d", ready, pools)
			}
			return nil
		})
	}
	b.ReportMetric(before, "MiB-before")
	b.ReportMetric(resident(b), "MiB-with-1000-pools")
}

// resident returns the operator's resident memory in MiB.
func resident(b *testing.B) float64 {
	b.Helper()
	now, _, err := env.OperatorProcess().Memory()
	if err != nil {
		b.Fatal(err)
	}
	return now
}
