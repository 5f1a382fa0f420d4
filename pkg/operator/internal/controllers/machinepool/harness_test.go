// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// withSizes returns shards whose servers have the group "workers" with these sizes,
// or no group if the size is 0.
func withSizes(sizes map[string]int32) *shardtest.Shards {
	groups := map[string]*shard.Group{}
	for id, size := range sizes {
		groups[id] = nil
		if size > 0 {
			groups[id] = &shard.Group{Key: "workers", Size: size}
		}
	}
	return withGroups(groups)
}

// withGroups returns shards whose servers report these groups, nil for no group.
func withGroups(groups map[string]*shard.Group) *shardtest.Shards {
	shards := shardtest.New()
	for id, group := range groups {
		shards.ByID[id] = shardtest.NewShard()
		if group != nil {
			shards.SetGroup(id, *group)
		}
	}
	return shards
}

// harness is a controller whose caches show what the test wants.
type harness struct {
	*controllertest.Harness
	controller *Controller
}

// newHarness returns a controller with objects in its caches.
func newHarness(t *testing.T, shards *shardtest.Shards, objects ...runtime.Object) *harness {
	t.Helper()
	h := &harness{Harness: controllertest.NewHarness(t, shards, objects...)}
	var err error
	h.controller, err = New(h.Dependencies)
	require.NoError(t, err)
	h.Show()
	return h
}

// scale sets the replicas of the pool's MachinePool in the cache.
func (h *harness) scale(replicas int32) {
	h.T.Helper()
	scaled := machinePool("workers", &replicas)
	h.Put(h.Informers.MachinePools, scaled)
	h.CAPI.Show(h.T, scaled)
}

// sync syncs the pool once and returns the writes of our kinds, sorted.
func (h *harness) sync() (writes []string, requeue time.Duration, err error) {
	requeue, err = h.controller.sync(h.Ctx, controllertest.Key("workers"))
	writes = h.Writes()
	slices.Sort(writes)
	return writes, requeue, err
}

// expect syncs the pool once, without an error, and compares the writes.
func (h *harness) expect(want ...string) {
	h.T.Helper()
	got, _, err := h.sync()
	require.NoError(h.T, err)
	assert.Equal(h.T, want, got, "wrote")
}

// report changes the status of a shard group as its own controller does.
func (h *harness) report(shard string, change func(*v1beta1.NstanceShardGroup)) {
	h.T.Helper()
	controllertest.Change(h.API, v1beta1.ShardGroupName("workers", shard), change)
	h.Show()
}

// deleteShardGroup deletes a shard group from the API server and the caches.
func (h *harness) deleteShardGroup(shard string) {
	h.T.Helper()
	controllertest.Remove[*v1beta1.NstanceShardGroup](h.API, v1beta1.ShardGroupName("workers", shard))
	h.Show()
}

// updatePool changes the pool on the API server and in the caches.
func (h *harness) updatePool(change func(*v1beta1.NstanceMachinePool)) {
	h.T.Helper()
	controllertest.Change(h.API, "workers", change)
	h.Show()
}

func (h *harness) pool() *v1beta1.NstanceMachinePool {
	return controllertest.Get[*v1beta1.NstanceMachinePool](h.API, "workers")
}

func (h *harness) shardGroup(shard string) *v1beta1.NstanceShardGroup {
	return controllertest.Get[*v1beta1.NstanceShardGroup](h.API, v1beta1.ShardGroupName("workers", shard))
}

// expectSizes compares the sizes of shard groups.
func (h *harness) expectSizes(sizes map[string]int32) {
	h.T.Helper()
	for shard, size := range sizes {
		if got := h.shardGroup(shard).Spec; got.Size != size {
			h.T.Errorf("shard %s has size %d and removes %q first, want size %d", shard, got.Size, got.RemoveFirst, size)
		}
	}
}

// newPool is the pool "workers" of the group "workers" on these shards.
func newPool(shards ...v1beta1.Identifier) *v1beta1.NstanceMachinePool {
	return &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "workers", UID: "uid-workers", Generation: 1,
			Finalizers: []string{v1beta1.FinalizerMachinePool}},
		Spec: v1beta1.NstanceMachinePoolSpec{
			Group: "workers", Shards: shards,
			GroupSettings: v1beta1.GroupSettings{Template: "standard", InstanceType: "large", Subnets: []v1beta1.Identifier{"private"}, Vars: map[string]string{"a": "1"}},
		},
	}
}

// newShardGroup is the shard group of a pool for a shard, as the controller creates it.
func newShardGroup(pool *v1beta1.NstanceMachinePool, shard string, size int32) *v1beta1.NstanceShardGroup {
	group := controllertest.NewShardGroup(pool, v1beta1.Identifier(shard))
	group.Spec = wantedSpec(pool, shard, size)
	group.Labels, group.Finalizers = shardGroupLabels(&group.Spec), []string{v1beta1.FinalizerShardGroup}
	return group
}

// ready makes group report that its size runs, under these provider ids.
func ready(group *v1beta1.NstanceShardGroup, ids ...string) *v1beta1.NstanceShardGroup {
	group.Status.Replicas = ptr.To(group.Spec.Size)
	group.Status.ProviderIDs = ids
	group.Status.ObservedGeneration = group.Generation
	condition(group, v1beta1.ConditionShardReachable, metav1.ConditionTrue, v1beta1.ReasonReachable, "")
	condition(group, v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady, "")
	return group
}

// notReady makes group report for this reason that it is not ready.
func notReady(group *v1beta1.NstanceShardGroup, reason, message string) *v1beta1.NstanceShardGroup {
	ready(group)
	condition(group, v1beta1.ConditionReady, metav1.ConditionFalse, reason, message)
	return group
}

// running makes group report so many instances.
func running(group *v1beta1.NstanceShardGroup, replicas int32) *v1beta1.NstanceShardGroup {
	group.Status.Replicas = &replicas
	return group
}

// away makes group report that its shard is not connected.
func away(group *v1beta1.NstanceShardGroup) *v1beta1.NstanceShardGroup {
	condition(group, v1beta1.ConditionShardReachable, metav1.ConditionFalse, v1beta1.ReasonShardUnreachable, "connection refused")
	condition(group, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonShardUnreachable, "connection refused")
	return group
}

func condition(group *v1beta1.NstanceShardGroup, kind string, status metav1.ConditionStatus, reason, message string) {
	controller.SetCondition(&group.Status.Conditions, group.Generation, kind, status, reason, message)
}

// machinePool is a MachinePool that refers to the pool "workers".
func machinePool(name string, replicas *int32) *clusterv1.MachinePool {
	made := newMachinePool(&v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "workers"}}, "cluster", 0)
	made.Name, made.UID = name, types.UID("uid-machinepool-"+name)
	made.Spec.Replicas = replicas
	return made
}

// withDefaultReplicas marks the replicas of machinePool as the default of Cluster API.
func withDefaultReplicas(machinePool *clusterv1.MachinePool) *clusterv1.MachinePool {
	machinePool.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:clusterName":{}}}`)}}
	return machinePool
}

// observed observes a pool with these replicas in its MachinePool. Every shard is
// configured and synced, and may have one of groups.
func observed(pool *v1beta1.NstanceMachinePool, replicas int32, groups ...*v1beta1.NstanceShardGroup) observation {
	seen := observation{pool: pool, machinePools: []*clusterv1.MachinePool{machinePool("workers", &replicas)}}
	for _, id := range pool.Spec.Shards {
		state := shardState{id: string(id), configured: true, synced: true}
		for _, group := range groups {
			if group.Spec.Shard == id {
				state.group, state.size = group, group.Spec.Size
			}
		}
		seen.shards = append(seen.shards, state)
	}
	for _, group := range groups {
		if metav1.IsControlledBy(group, pool) {
			seen.shardGroups = append(seen.shardGroups, group)
		}
	}
	return seen
}

// planOf plans with the shards of seen, converted as observe does.
func planOf(seen observation) decision {
	seen.distributable = distributable(seen.pool, seen.shards)
	return plan(seen)
}

// sizesOf returns the current sizes of the shards of seen.
func sizesOf(seen observation) []int32 {
	return distribute.Sizes(distributable(seen.pool, seen.shards))
}
