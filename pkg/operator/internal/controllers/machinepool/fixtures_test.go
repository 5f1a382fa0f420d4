// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/internal/distribute"
)

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

// newShardGroup is the part of pool that shard has, as the controller makes it.
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

// observed is what a sync of pool sees with these replicas wanted, when every
// shard is configured, synced and has one of groups or none.
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
