// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// instances are the instances of a group: the shard of each by its id.
type instances map[string]string

// instancesOf returns the instances of a group that are not being deleted, as the
// servers list them.
func instancesOf(ctx context.Context, group string) (instances, error) {
	found := instances{}
	for _, shardID := range env.ShardIDs {
		g, err := groupOn(ctx, shardID, group)
		if err != nil {
			return nil, err
		}
		for _, i := range g.GetInstances().GetInstances() {
			switch shard.InstanceState(i.GetStatus()) {
			case shard.InstanceTerminating, shard.InstanceTerminated:
			default:
				found[i.GetId()] = shardID
			}
		}
	}
	return found, nil
}

// groupOn returns a group as the server of a shard reports it, nil when it reports none.
func groupOn(ctx context.Context, shardID, name string) (*nstancev1.GroupStatus, error) {
	list, err := env.shards[shardID].ListGroups(ctx, &emptypb.Empty{})
	for _, group := range list.GetGroups() {
		if group.GetKey() == name {
			return group, nil
		}
	}
	return nil, err
}

func getInstances(t testing.TB, group string) instances {
	t.Helper()
	found, err := instancesOf(t.Context(), group)
	require.NoError(t, err)
	return found
}

// ids returns the ids of the instances, sorted.
func (i instances) ids() []string { return slices.Sorted(maps.Keys(i)) }

// on returns the ids of those on a shard, sorted.
func (i instances) on(shardID string) []string {
	var ids []string
	for _, id := range i.ids() {
		if i[id] == shardID {
			ids = append(ids, id)
		}
	}
	return ids
}

// sizes returns how many there are on each shard of a pool.
func (i instances) sizes() []int {
	sizes := make([]int, len(shardIDs))
	for n, shardID := range shardIDs {
		sizes[n] = len(i.on(shardID))
	}
	return sizes
}

// without returns all instances but some.
func (i instances) without(ids ...string) instances {
	rest := maps.Clone(i)
	for _, id := range ids {
		delete(rest, id)
	}
	return rest
}

// sizesOf returns the sizes in the specs of a pool's shard groups, in the order of the
// shards.
func sizesOf(ctx context.Context, pool string) ([]int, error) {
	groups, err := env.ShardGroups(ctx, pool)
	if err != nil {
		return nil, err
	}
	sizes := make([]int, len(shardIDs))
	for _, g := range groups {
		n := slices.Index(shardIDs, string(g.Spec.Shard))
		if n < 0 {
			return nil, fmt.Errorf("shard group %s of another shard", g.Name)
		}
		sizes[n] = int(g.Spec.Size)
	}
	return sizes, nil
}

// expectInstances fails the test unless a group has exactly these instances, and its
// pool requests as many on each shard.
func expectInstances(t testing.TB, group string, want instances) {
	t.Helper()
	if got := getInstances(t, group); !maps.Equal(got, want) {
		t.Errorf("lost %v, new %v", want.without(got.ids()...).ids(), got.without(want.ids()...).ids())
	}
	sizes, err := sizesOf(t.Context(), group)
	require.NoError(t, err)
	assert.Equal(t, want.sizes(), sizes, "requested sizes")
	if pool, err := env.NstanceMachinePool(t.Context(), group); err != nil || ptr.Deref(pool.Status.DesiredReplicas, -1) != int32(len(want)) {
		t.Errorf("the pool wants %d instances, want %d (error %v)", ptr.Deref(pool.Status.DesiredReplicas, -1), len(want), err)
	}
}

// filled returns the sizes after so many instances were added, one by one, each to the
// smallest shard, the first of equal ones.
func filled(sizes []int, count int) []int {
	sizes = slices.Clone(sizes)
	for range count {
		sizes[slices.Index(sizes, slices.Min(sizes))]++
	}
	return sizes
}
