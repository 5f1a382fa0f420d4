// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

func retainedPool(shards ...v1beta1.Identifier) *v1beta1.NstanceMachinePool {
	pool := newPool(shards...)
	pool.Spec.DeletionPolicy = v1beta1.DeletionRetain
	return pool
}

// The default is not written, so that shard groups from before stay as they are.
func TestShardGroupsGetThePolicyRetain(t *testing.T) {
	for _, policy := range []v1beta1.DeletionPolicy{"", v1beta1.DeletionDelete} {
		pool := newPool("a")
		pool.Spec.DeletionPolicy = policy
		assert.Empty(t, planOf(observed(pool, 1, newShardGroup(newPool("a"), "a", 1))).apply)
	}
	h := newHarness(t, withSizes(map[string]int32{"a": 1}), retainedPool("a"))
	h.scale(1)
	h.expect(groupA)
	assert.Equal(t, v1beta1.DeletionRetain, h.shardGroup("a").Spec.DeletionPolicy)
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { pool.Spec.DeletionPolicy = v1beta1.DeletionDelete })
	h.settle()
	assert.Empty(t, h.shardGroup("a").Spec.DeletionPolicy)
	assert.Equal(t, int32(1), h.shardGroup("a").Spec.Size)
}

// Each shard group has the policy of the pool before it is deleted, also if the policy was
// changed just before the deletion.
func TestShardGroupsAreDeletedWithThePolicyOfThePool(t *testing.T) {
	now := metav1.Now()
	for name, test := range map[string]struct {
		pool, group v1beta1.DeletionPolicy
		change      func(*observation)
		// applied is the policy that is written, "none" for no write.
		applied v1beta1.DeletionPolicy
		deleted bool
	}{
		"Retain":                            {v1beta1.DeletionRetain, v1beta1.DeletionRetain, nil, "none", true},
		"Retain, and it is not written yet": {v1beta1.DeletionRetain, "", nil, v1beta1.DeletionRetain, false},
		"Retain, with Machines": {v1beta1.DeletionRetain, v1beta1.DeletionRetain, func(seen *observation) {
			nstanceMachine, _ := newInstance("a1", "a", nil)
			seen.nstanceMachines = append(seen.nstanceMachines, nstanceMachine)
			drained(*seen, "a1")
		}, "none", true},
		"Retain, and it is being deleted without": {v1beta1.DeletionRetain, "", func(seen *observation) {
			seen.shardGroups[0].DeletionTimestamp = &now
		}, v1beta1.DeletionRetain, false},
		"Retain, and it is being deleted": {v1beta1.DeletionRetain, v1beta1.DeletionRetain, func(seen *observation) {
			seen.shardGroups[0].DeletionTimestamp = &now
		}, "none", false},
		"Delete":                    {v1beta1.DeletionDelete, "", nil, "none", true},
		"Delete, and Retain before": {v1beta1.DeletionDelete, v1beta1.DeletionRetain, nil, "", false},
		"Delete, and it is being deleted by Retain": {"", v1beta1.DeletionRetain, func(seen *observation) { seen.shardGroups[0].DeletionTimestamp = &now }, "none", false},
	} {
		t.Run(name, func(t *testing.T) {
			pool := deletingPool("a")
			pool.Spec.DeletionPolicy = test.pool
			group := newShardGroup(pool, "a", 3)
			group.Spec.DeletionPolicy = test.group
			seen := observed(pool, 3, group)
			if test.change != nil {
				test.change(&seen)
			}
			d := planOf(seen)
			if test.applied == "none" {
				assert.Empty(t, d.apply)
			} else {
				assert.Len(t, d.apply, 1)
				assert.Equal(t, test.applied, d.apply[0].spec.DeletionPolicy)
				assert.Equal(t, int32(3), d.apply[0].spec.Size)
			}
			assert.Equal(t, test.deleted, len(d.deleteShardGroups) == 1)
			assert.False(t, d.removeFinalizer)
		})
	}
}

// The instances on a shard that is removed from the pool are replaced on the others.
func TestRetainIsNotForARemovedShard(t *testing.T) {
	pool := retainedPool("a", "b")
	removed := newShardGroup(pool, "b", 2)
	pool.Spec.Shards = pool.Spec.Shards[:1]
	d := planOf(observed(pool, 2, newShardGroup(pool, "a", 2), removed))
	assert.Empty(t, d.deleteShardGroups)
	assert.Len(t, d.apply, 1)
	assert.Empty(t, d.apply[0].spec.DeletionPolicy)
	removed.Spec.DeletionPolicy = ""
	d = planOf(observed(pool, 2, newShardGroup(pool, "a", 2), removed))
	assert.Len(t, d.deleteShardGroups, 1)
	assert.Empty(t, d.apply)
}

// Cluster API deletes the Node of an id that leaves the list.
func TestRetainKeepsProviderIDs(t *testing.T) {
	pool := retainedPool("a", "b")
	now := metav1.Now()
	pool.DeletionTimestamp = &now
	pool.Spec.ProviderIDList = []string{"i-1", "i-2"}
	pool.OwnerReferences = []metav1.OwnerReference{{UID: "uid-machinepool-workers"}}
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1}), pool, ready(newShardGroup(pool, "a", 1), "i-1"), ready(newShardGroup(pool, "b", 1), "i-2"))
	h.scale(2)
	h.expect(poolStatus, deleteA, deleteB)
	h.Show()
	h.deleteShardGroup("a")
	writes, _, err := h.sync()
	assert.NoError(t, err)
	assert.NotContains(t, writes, poolSpec)
	assert.Equal(t, []string{"i-1", "i-2"}, h.pool().Spec.ProviderIDList)
	h.Show()
	h.deleteShardGroup("b")
	h.expect(removeFinalizerOfPool)
}
