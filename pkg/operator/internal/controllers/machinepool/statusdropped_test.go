// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// restoredPool returns a pool and its shard groups on shards a and b, as a backup
// restores them that has no status.
func restoredPool(sizes ...int32) (*v1beta1.NstanceMachinePool, []*v1beta1.NstanceShardGroup) {
	pool := newPool("a", "b")
	pool.Spec.ProviderIDList = []string{"i-1", "i-2"}
	return pool, []*v1beta1.NstanceShardGroup{newShardGroup(pool, "a", sizes[0]), newShardGroup(pool, "b", sizes[1])}
}

// Cluster API deletes the Node of an id that is removed.
func TestProviderIDsSurviveTheLossOfTheStatus(t *testing.T) {
	pool, groups := restoredPool(1, 1)
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1}), pool, groups[0], groups[1])
	h.scale(2)
	expect := func(want ...string) {
		t.Helper()
		_, _, err := h.sync()
		assert.NoError(t, err)
		assert.Equal(t, want, h.pool().Spec.ProviderIDList)
	}
	expect("i-1", "i-2")
	h.report("a", func(group *v1beta1.NstanceShardGroup) { ready(group, "i-1") })
	expect("i-1", "i-2")
	h.report("b", func(group *v1beta1.NstanceShardGroup) { ready(group) })
	expect("i-1")
}

// The instances of a pool with Machines are selected one by one. Dividing them evenly
// would terminate some.
func TestAnUnevenPoolWithMachinesStaysUnevenWithoutItsStatus(t *testing.T) {
	pool, groups := restoredPool(3, 0)
	member := &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{
		Namespace: pool.Namespace, Name: "i-1", UID: "uid-i-1",
		Labels: map[string]string{clusterv1.MachinePoolNameLabel: "workers"},
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: v1beta1.SchemeGroupVersion.String(), Kind: v1beta1.PoolKind, Name: pool.Name, UID: pool.UID},
		},
	}, Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}, Shard: "a"}}
	onA, onB := listed("i-1", "i-2", "i-3"), listed()
	for mode, want := range map[v1beta1.MachinesMode]map[string]int32{
		v1beta1.MachinesAlways: {"a": 3, "b": 0},
		v1beta1.MachinesNever:  {"a": 2, "b": 1},
	} {
		t.Run(string(mode), func(t *testing.T) {
			pool := pool.DeepCopy()
			pool.Spec.Machines = mode
			h := newHarness(t, withGroups(map[string]*shard.Group{"a": onA, "b": onB}), pool, groups[0].DeepCopy(), groups[1].DeepCopy(), member)
			h.scale(3)
			_, _, err := h.sync()
			assert.NoError(t, err)
			h.expectSizes(want)
		})
	}
}
