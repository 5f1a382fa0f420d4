// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/operator/shard"
)

// A shard group that exists is written as it was observed: a former leader, or one whose
// cache is stale, gets a conflict.
func TestExistingShardGroupIsWrittenAsObserved(t *testing.T) {
	pool := newPool("a")
	group := newShardGroup(pool, "a", 1)
	group.UID, group.ResourceVersion = "uid-a", "7"
	d := planOf(observed(pool, 3, group))
	require.Len(t, d.apply, 1)
	applied := applyShardGroup(pool, d.apply[0])
	assert.Equal(t, ptr.To(types.UID("uid-a")), applied.UID)
	assert.Equal(t, ptr.To("7"), applied.ResourceVersion)
}

// Its finalizer is written when the pool is resumed, before anything exists on a shard.
func TestPausedPoolGetsNoFinalizer(t *testing.T) {
	pool := newPool("a")
	pool.Finalizers, pool.Annotations = nil, pausedAnnotation
	h := newHarness(t, withSizes(map[string]int32{"a": 0}), pool)
	h.scale(2)
	h.expect(poolStatus)
	assert.Empty(t, h.pool().Finalizers)
}

// The instances of a group that is being deleted are not part of a pool that gets its name.
func TestSyncDoesNotCountAGroupThatIsBeingDeleted(t *testing.T) {
	shards := withGroups(map[string]*shard.Group{"a": {Key: "workers", Size: 4, Deleting: true}, "b": {Key: "workers", Size: 3}})
	h := newHarness(t, shards, newPool("a", "b"))
	h.expect()
	require.Len(t, h.CAPI.Created, 1)
	assert.EqualValues(t, 3, h.CAPI.Created[0].Object["spec"].(map[string]any)["replicas"])
}
