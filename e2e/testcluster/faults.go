// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/testing/tier"
)

// Fault is an outage or a wrong input.
type Fault struct {
	Name string
	// Happen begins the scale-up of a pool, before or after the fault begins. The fault
	// lasts until it has had an effect, and has ended when Happen returns.
	Happen func(*testing.T, ScaleUp)
}

// InFull returns the faults in make test-full, and none in make test: these are faults
// that the operator cannot distinguish from others of the same table.
func InFull(faults ...Fault) []Fault {
	if !tier.Full() {
		return nil
	}
	return faults
}

// ScaleUp is the scale-up of a pool during which a fault happens.
type ScaleUp struct {
	c        *Cluster
	pool     string
	replicas int32
}

// Begin sets the replicas.
func (s ScaleUp) Begin(t *testing.T) {
	t.Helper()
	s.c.Scale(t, s.pool, s.replicas)
}

// UntilShardsRun waits until the shards run the new instances, whether they have Nodes or
// not.
func (s ScaleUp) UntilShardsRun(t *testing.T) {
	t.Helper()
	sizes := slices.Repeat([]int32{s.replicas / int32(len(s.c.ShardIDs))}, len(s.c.ShardIDs))
	Eventually(t, 2*time.Minute, "the shards run the new instances", func(ctx context.Context) error {
		return s.c.SizesAre(ctx, s.pool, sizes...)
	})
}

// During returns a Happen of a fault that begins when the scale-up has begun.
func During(fault func(*testing.T)) func(*testing.T, ScaleUp) {
	return func(t *testing.T, scaleUp ScaleUp) {
		scaleUp.Begin(t)
		fault(t)
	}
}

// ExpectNoLosses creates a pool, which stays, and checks for each fault that nothing is
// deleted: no operator requests a smaller size of a group, deletes an instance or
// acknowledges a drain, and neither Nodes nor objects of Cluster API or Nstance are
// deleted. With the end of the fault, the scale-up completes without further changes.
// recovered is called until then, and starts again what a Deployment would. Optional.
func (c *Cluster) ExpectNoLosses(t *testing.T, pool string, faults []Fault, recovered func(*testing.T)) {
	t.Helper()
	perFault := int32(len(c.ShardIDs))
	replicas := 2 * perFault
	require.NoError(t, c.CreatePoolOnAllShards(t.Context(), pool, replicas))
	c.UntilRunning(t, pool, replicas)
	witness := c.NewWitness(t, pool)

	for _, fault := range faults {
		t.Run(fault.Name, func(t *testing.T) {
			before := witness.ExpectNone(t)
			witness.Remember(t)
			replicas += perFault
			fault.Happen(t, ScaleUp{c, pool, replicas})
			Eventually(t, 3*time.Minute, fmt.Sprintf("%s runs with %d replicas", pool, replicas), func(ctx context.Context) error {
				if recovered != nil {
					recovered(t)
				}
				return c.Running(ctx, pool, replicas)
			})
			if witness.ExpectNone(t) == before {
				t.Error("no call was checked, not even those of the scale-up")
			}
		})
	}
}

// PoolFault is a fault of one pool, which does not concern others.
type PoolFault struct {
	Name string
	// Begin begins the fault for a pool. The result succeeds when the fault has had its
	// effect on a scale-up of the pool.
	Begin func(t *testing.T, pool string) (hadEffect func(context.Context) error)
}

// ExpectNoLossesAtOnce is ExpectNoLosses for faults that happen at the same time, each
// during the scale-up of a pool of its own. end ends all of them.
func (c *Cluster) ExpectNoLossesAtOnce(t *testing.T, prefix string, faults []PoolFault, end func()) {
	t.Helper()
	replicas := int32(len(c.ShardIDs))
	pools := make([]string, len(faults))
	for i := range faults {
		pools[i] = fmt.Sprintf("%s-%d", prefix, i)
		require.NoError(t, c.CreatePoolOnAllShards(t.Context(), pools[i], replicas))
	}
	witnesses := make([]*Witness, len(faults))
	for i, pool := range pools {
		c.UntilRunning(t, pool, replicas)
		witnesses[i] = c.NewWitness(t, pool)
	}

	t.Cleanup(end)
	hadEffect := make([]func(context.Context) error, len(faults))
	for i, fault := range faults {
		hadEffect[i] = fault.Begin(t, pools[i])
		c.Scale(t, pools[i], 2*replicas)
	}
	for i, fault := range faults {
		Eventually(t, 2*time.Minute, fault.Name+" has its effect", hadEffect[i])
	}
	end()
	for i, fault := range faults {
		t.Run(fault.Name, func(t *testing.T) {
			c.UntilRunning(t, pools[i], 2*replicas)
			if witnesses[i].ExpectNone(t) == 0 {
				t.Error("no call was checked, not even those of the scale-up")
			}
		})
	}
}
