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

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/testing/tier"
)

// Fault is an outage or a wrong input.
type Fault struct {
	Name string
	// Happen begins the scale-up of a pool, before or after the fault begins. The fault
	// lasts until it has had an effect, and has ended when Happen returns.
	Happen func(*testing.T, ScaleUp)
}

// OnlyInFull returns the faults in make test-full, and nil in make test: the operator cannot
// distinguish these faults from others of the same table.
func OnlyInFull(faults ...Fault) []Fault {
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
			witness.SetBaseline(t)
			replicas += perFault
			fault.Happen(t, ScaleUp{c, pool, replicas})
			Eventually(t, 3*time.Minute, fmt.Sprintf("%s runs with %d replicas", pool, replicas), func(ctx context.Context) error {
				if recovered != nil {
					recovered(t)
				}
				return c.Running(ctx, pool, replicas)
			})
			if witness.ExpectNone(t) == before {
				t.Error("no call was checked, not even the calls of the scale-up")
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
				t.Error("no call was checked, not even the calls of the scale-up")
			}
		})
	}
}

// LossChecker checks whether operators have scaled a group down since it was created,
// by every call that the shards' servers have received.
type LossChecker struct {
	c *Cluster
	// Group is the id of the group.
	Group string
	// IgnoreOtherGroups ignores deletions of other groups, for tests that run at the same time as
	// others.
	IgnoreOtherGroups bool
	// sizes and calls are the size of the group on each shard, and the number of calls
	// that the shard had received, at the last check.
	sizes map[string]int32
	calls map[string]int
	// seen is how many UpsertGroups there were for the group.
	seen int
}

// NewLossChecker returns a LossChecker that begins now. Every shard must be up.
func (c *Cluster) NewLossChecker(t testing.TB, group string) *LossChecker {
	t.Helper()
	l := &LossChecker{c: c, Group: group, sizes: map[string]int32{}, calls: map[string]int{}}
	for _, shard := range c.ShardIDs {
		l.calls[shard] = len(c.Calls(t, shard))
		status, err := c.Group(t.Context(), shard, group)
		require.NoError(t, err)
		l.sizes[shard] = status.GetSize()
	}
	return l
}

// ExpectNone fails the test for every loss since the last check. It returns how many
// UpsertGroups there were for the group since the beginning.
func (l *LossChecker) ExpectNone(t testing.TB) int {
	t.Helper()
	losses, seen := l.Losses(t)
	for _, loss := range losses {
		t.Error(loss)
	}
	return seen
}

// Losses returns every call since the last check that requested a smaller size than before, the
// deletion of any group (see IgnoreOtherGroups), or the deletion of an instance of the group, and
// how many UpsertGroups there were for the group since the beginning.
func (l *LossChecker) Losses(t testing.TB) (losses []string, seen int) {
	t.Helper()
	report := func(format string, arguments ...any) { losses = append(losses, fmt.Sprintf(format, arguments...)) }
	for _, shard := range l.c.ShardIDs {
		size := l.sizes[shard]
		calls := l.c.Calls(t, shard)
		for _, call := range calls[l.calls[shard]:] {
			switch {
			case call.Method == installation.DeleteGroup && (call.Group == l.Group || !l.IgnoreOtherGroups):
				report("shard %s received DeleteGroup of %s", shard, call.Group)
			case call.Group != l.Group:
			case call.Method != installation.UpsertGroup:
				report("shard %s received %s of %s", shard, call.Method, call.Instance)
			case call.Size < size:
				report("shard %s received UpsertGroup of %s with size %d, it had %d", shard, call.Group, call.Size, size)
				fallthrough
			default:
				size = call.Size
				l.seen++
			}
		}
		l.sizes[shard], l.calls[shard] = size, len(calls)
	}
	return losses, l.seen
}

// Witness observes what a pool loses, whether the operator, a server, a controller or a
// user causes it.
type Witness struct {
	*LossChecker

	pool string
	// from is the position of the last check.
	from controlplane.Position
	// ids are the provider ids of the instances that the pool had before.
	ids []string
}

// NewWitness returns a Witness that begins now. Every shard must be up.
func (c *Cluster) NewWitness(t testing.TB, pool string) *Witness {
	t.Helper()
	w := &Witness{LossChecker: c.NewLossChecker(t, pool), pool: pool, from: c.AuditEnd(t)}
	w.SetBaseline(t)
	return w
}

// SetBaseline makes the Witness expect that the pool keeps the instances that it has now.
func (w *Witness) SetBaseline(t testing.TB) {
	t.Helper()
	w.ids = w.c.providerIDs(t, w.pool)
}

// ExpectNone fails the test for every loss that the Witness has observed, like
// LossChecker.ExpectNone.
func (w *Witness) ExpectNone(t testing.TB) int {
	t.Helper()
	losses, seen := w.Losses(t)
	for _, loss := range losses {
		t.Error(loss)
	}
	return seen
}

// Losses adds to LossChecker.Losses the deletions of Nodes and objects, and the instances that the
// pool does not have any more.
func (w *Witness) Losses(t testing.TB) (losses []string, seen int) {
	t.Helper()
	losses, seen = w.LossChecker.Losses(t)
	end := w.c.AuditEnd(t)
	if deletions := w.c.Requests(t, w.from, IsDeletion); len(deletions) > 0 {
		losses = append(losses, fmt.Sprintf("%d deletions:%s", len(deletions), Describe(deletions)))
	}
	w.from = end
	now := w.c.providerIDs(t, w.pool)
	for _, id := range w.ids {
		if !slices.Contains(now, id) {
			losses = append(losses, fmt.Sprintf("the pool does not have instance %s any more", id))
		}
	}
	return losses, seen
}

func (c *Cluster) providerIDs(t testing.TB, pool string) []string {
	t.Helper()
	object, err := c.NstanceMachinePool(t.Context(), pool)
	require.NoError(t, err)
	return object.Spec.ProviderIDList
}
