// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller/controllertest"
	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/shardtest"
)

const (
	namespace   = controllertest.Namespace
	clusterName = controllertest.ClusterName
)

// newPool is the pool name of a group on these shards.
func newPool(name string, group v1beta1.Identifier, shards ...v1beta1.Identifier) *v1beta1.NstanceMachinePool {
	return &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: group, Shards: shards},
	}
}

// newShardGroup is the part of a pool that a shard has.
func newShardGroup(pool *v1beta1.NstanceMachinePool, id v1beta1.Identifier) *v1beta1.NstanceShardGroup {
	return &v1beta1.NstanceShardGroup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: v1beta1.ShardGroupName(string(pool.Spec.Group), string(id)), Generation: 1,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pool, v1beta1.SchemeGroupVersion.WithKind(v1beta1.PoolKind))},
		},
		Spec: v1beta1.NstanceShardGroupSpec{Group: pool.Spec.Group, Shard: id},
	}
}

// newMachinePool is a MachinePool that refers to a pool.
func newMachinePool(name, pool string) *clusterv1.MachinePool {
	machinePool := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	machinePool.Spec.Template.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: v1beta1.GroupName, Kind: v1beta1.PoolKind, Name: pool,
	}
	return machinePool
}

func newCluster(name string) *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func paused(cluster *clusterv1.Cluster) *clusterv1.Cluster {
	cluster.Spec.Paused = ptr.To(true)
	return cluster
}

// up returns a shard that is connected and synced.
func up(groups ...shard.Group) *shardtest.Shard {
	return unknown(true, true, groups...)
}

// unknown returns a shard that is synced or connected, or not.
func unknown(synced, reachable bool, groups ...shard.Group) *shardtest.Shard {
	state := shardtest.NewShard()
	state.Synced, state.Reachable = synced, reachable
	for _, group := range groups {
		state.Groups[group.Key] = group
	}
	return state
}

// A group "main" as a shard reports it.
func static(size int32) shard.Group {
	return shard.Group{
		Key: "main", Size: size, GroupSettings: shard.GroupSettings{Template: "server", InstanceType: "large", Subnets: []string{"private"},
			Vars: map[string]string{"a": "1"}}, Static: true,
	}
}

func dynamic(template string) shard.Group {
	group := static(1)
	group.Static, group.Template = false, template
	return group
}

func deleting(group shard.Group) shard.Group {
	group.Deleting = true
	return group
}
