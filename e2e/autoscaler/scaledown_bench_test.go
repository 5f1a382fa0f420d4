// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"fmt"
	"testing"
	"time"

	"nstance.dev/operator/e2e/controlplane"
)

// BenchmarkScaleDown500 has the autoscaler take one instance after the other from
// a pool of 50 and from one of 500, and counts what the operator writes for each:
// that it must not be more in the larger pool. It leaves its pools behind.
func BenchmarkScaleDown500(b *testing.B) {
	const downs = 5
	writesPerDown := map[int]float64{}
	for _, size := range []int{50, 500} {
		b.Run(fmt.Sprintf("instances=%d", size), func(b *testing.B) {
			group, random := createLastingPool(b, fmt.Sprintf("bench-%d", size), 0), newRandom(b)
			for b.Loop() {
				grow(b, group, size)
				var writes []controlplane.Write
				var took time.Duration
				for range downs {
					victim := chooseNodes(b, group, random, 1)[0]
					untilOperatorQuiet(b)
					from, begin := auditEnd(b), time.Now()
					if err := group.deleteNodes(b.Context(), victim); err != nil {
						b.Fatal(err)
					}
					untilMachinesGone(b, victim.Name)
					took += time.Since(begin)
					untilOperatorQuiet(b)
					writes = append(writes, writesSince(b, from, byOperator)...)
				}
				writesPerDown[size] = float64(len(writes)) / downs
				b.ReportMetric(writesPerDown[size], "writes/op")
				b.ReportMetric(took.Seconds()*1000/downs, "ms-until-gone")
				reportWrites(b, writes, downs)
			}
		})
	}
	// One of them may have been left out on the command line.
	small, large := writesPerDown[50], writesPerDown[500]
	if small > 0 && large > small+1 {
		b.Errorf("one scale-down costs %v writes in a pool of 500, and %v in one of 50", large, small)
	}
}

// grow has a pool grow to a size in steps: of many Nodes that come at once Cluster
// API's attempts at the MachinePool fail for each other's sake.
func grow(b *testing.B, group nodeGroup, size int) {
	b.Helper()
	const step, within = 50, 10 * time.Minute
	present, err := group.targetSize(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for at := int(present); at < size; {
		delta := min(step, size-at)
		begin := time.Now()
		if err := group.increaseSize(b.Context(), int64(delta)); err != nil {
			b.Fatal(err)
		}
		at += delta
		eventuallyEvery(b, 2*time.Second, within, fmt.Sprintf("%d instances have Machines that run", at), func(ctx context.Context) error {
			_, err := running(ctx, group.name, at)
			return err
		})
		b.Logf("%d instances and Machines run, %d more after %s", at, delta, time.Since(begin).Round(time.Second/10))
	}
}

// untilOperatorQuiet waits until the operator has written nothing for twenty
// looks.
func untilOperatorQuiet(b *testing.B) {
	b.Helper()
	from, quiet := auditEnd(b), 0
	eventually(b, "the operator writes nothing", func(context.Context) error {
		writes := writesSince(b, from, byOperator)
		if quiet++; len(writes) > 0 {
			from, quiet = auditEnd(b), 0
		}
		if quiet < 20 {
			return fmt.Errorf("%d looks without a write, the last were%s", quiet, describe(writes, line))
		}
		return nil
	})
}

// reportWrites reports what a scale-down costs by kind of write.
func reportWrites(b *testing.B, writes []controlplane.Write, downs int) {
	b.Helper()
	counts := map[string]int{}
	for _, w := range writes {
		kind := w.Verb + "-" + w.Resource
		if w.Subresource != "" {
			kind += "." + w.Subresource
		}
		counts[kind]++
	}
	for kind, count := range counts {
		b.ReportMetric(float64(count)/float64(downs), kind+"/op")
	}
}
