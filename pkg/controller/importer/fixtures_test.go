// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

const (
	namespace   = "default"
	clusterName = "cluster--default"
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

// leaving is object as it is once its deletion was asked for.
func leaving[T metav1.Object](object T) T {
	object.SetDeletionTimestamp(ptr.To(metav1.Now()))
	object.SetFinalizers([]string{"example.com/wait"})
	return object
}

// server is what is known of one shard.
type server struct {
	synced, reachable bool
	groups            []shard.Group
}

// servers are the configured shards by id, and the cache of their groups.
type servers map[string]*server

// up is a shard of which everything is known.
func up(groups ...shard.Group) *server { return &server{synced: true, reachable: true, groups: groups} }

func (s servers) Shards() []string {
	var ids []string
	for id := range s {
		ids = append(ids, id)
	}
	// Of an order that is not the wanted one.
	slices.SortFunc(ids, func(a, b string) int { return strings.Compare(b, a) })
	return ids
}

func (s servers) Get(id, key string) (shard.Group, bool) {
	for _, group := range s.List(id) {
		if group.Key == key {
			return group, true
		}
	}
	return shard.Group{}, false
}

func (s servers) List(id string) []shard.Group {
	if s[id] == nil {
		return nil
	}
	return s[id].groups
}

func (s servers) HasSynced(id string) bool { return s[id] != nil && s[id].synced }

func (s servers) Reachable(id string) (bool, error) { return s[id] != nil && s[id].reachable, nil }

// A group "main" as a shard reports it.
func static(size int32) shard.Group {
	return shard.Group{
		Key: "main", Size: size, Template: "server", InstanceType: "large", Subnets: []string{"private"},
		Vars: map[string]string{"a": "1"}, Static: true,
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
