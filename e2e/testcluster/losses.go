// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
)

// LossChecker checks whether operators have scaled a group down since it was created,
// by every call that the shards' servers have received.
type LossChecker struct {
	c *Cluster
	// Group is the group.
	Group string
	// BesideOthers has it ignore deletions of other groups: tests that run at the same time
	// delete theirs.
	BesideOthers bool
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

// Losses returns every call since the last check that requested a smaller size than
// before, the deletion of any group (see BesideOthers), or that of an instance of the
// group, and how many UpsertGroups there were for the group since the beginning.
func (l *LossChecker) Losses(t testing.TB) (losses []string, seen int) {
	t.Helper()
	report := func(format string, arguments ...any) { losses = append(losses, fmt.Sprintf(format, arguments...)) }
	for _, shard := range l.c.ShardIDs {
		size := l.sizes[shard]
		calls := l.c.Calls(t, shard)
		for _, call := range calls[l.calls[shard]:] {
			switch {
			case call.Method == installation.DeleteGroup && (call.Group == l.Group || !l.BesideOthers):
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

// Calls returns the calls that the server of a shard has received.
func (c *Cluster) Calls(t testing.TB, shard string) []installation.Call {
	t.Helper()
	calls, err := c.Installation.Calls(shard)
	require.NoError(t, err)
	return calls
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
	w.Remember(t)
	return w
}

// Remember makes the instances that the pool has now those that it must keep.
func (w *Witness) Remember(t testing.TB) {
	t.Helper()
	w.ids = w.c.providerIDs(t, w.pool)
}

// ExpectNone is that of LossChecker for all that the Witness observes.
func (w *Witness) ExpectNone(t testing.TB) int {
	t.Helper()
	losses, seen := w.Losses(t)
	for _, loss := range losses {
		t.Error(loss)
	}
	return seen
}

// Losses is that of LossChecker, with the deletions of Nodes and objects and the instances
// that the pool does not have any more.
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
