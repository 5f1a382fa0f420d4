// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The most anonymous memory that the operator may have, without pools in MiB, and for each
// pool in KiB.
const (
	maxBefore  = 13
	maxPerPool = 30
)

// BenchmarkMemory measures the resident memory of an operator with the default flags,
// without work, before and after 1,000 pools over three shards are created. It does not
// delete them, so it must be the last benchmark.
func BenchmarkMemory(b *testing.B) {
	const pools = 1000
	operator := env.ReplaceOperator(b).Process
	before := readMemory(b, operator)
	for b.Loop() {
		var group errgroup.Group
		group.SetLimit(8)
		for i := range pools {
			group.Go(func() error { return env.CreatePoolOnAllShards(b.Context(), fmt.Sprintf("many-%d", i), 0) })
		}
		require.NoError(b, group.Wait())
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
	after := readMemory(b, operator)
	b.ReportMetric(before.resident, "MiB-before")
	b.ReportMetric(after.resident, "MiB-with-1000-pools")
	b.ReportMetric(before.anonymous, "MiB-anonymous-before")
	b.ReportMetric(after.anonymous, "MiB-anonymous-with-1000-pools")
	perPool := (after.anonymous - before.anonymous) * 1024 / pools
	b.ReportMetric(perPool, "KiB/pool")
	if before.anonymous > maxBefore || perPool > maxPerPool {
		b.Errorf("%.0f MiB without pools and %.0f KiB for each, want at most %d and %d", before.anonymous, perPool, maxBefore, maxPerPool)
	}
}

// memory is the operator's memory in MiB. The part that is anonymous is its own; the
// other part is its program, and differs by kernel and file system.
type memory struct{ resident, anonymous float64 }

func readMemory(b *testing.B, operator *controlplane.Component) memory {
	b.Helper()
	untilIdle(b)
	resident, _, err := operator.Memory()
	require.NoError(b, err)
	anonymous, err := operator.AnonymousMemory()
	require.NoError(b, err)
	return memory{resident: resident, anonymous: anonymous}
}
