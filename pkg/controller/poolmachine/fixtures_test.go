// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/shard"
)

const (
	namespace   = "default"
	clusterName = "cluster--default"
	poolUID     = "uid-workers"
)

// start is when tests begin.
var start = time.Unix(1_700_000_000, 0)

// newPool is the pool "workers" of the group "workers" on these shards, whose
// instances have Machines.
func newPool(shards ...v1beta1.Identifier) *v1beta1.NstanceMachinePool {
	return &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "workers", UID: poolUID, ResourceVersion: "1"},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: "workers", Shards: shards},
		Status:     v1beta1.NstanceMachinePoolStatus{InfrastructureMachineKind: "NstanceMachine"},
	}
}

// newShardGroup is the part of a pool that a shard has, with the ids of the
// instances that were chosen to go.
func newShardGroup(pool *v1beta1.NstanceMachinePool, id v1beta1.Identifier, chosen ...string) *v1beta1.NstanceShardGroup {
	return &v1beta1.NstanceShardGroup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: v1beta1.ShardGroupName(string(pool.Spec.Group), string(id)),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pool, v1beta1.SchemeGroupVersion.WithKind(v1beta1.PoolKind))},
		},
		Spec: v1beta1.NstanceShardGroupSpec{Group: pool.Spec.Group, Shard: id, RemoveFirst: chosen},
	}
}

// newMachinePool is the MachinePool of the pool "workers".
func newMachinePool() *clusterv1.MachinePool {
	machinePool := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "workers", UID: "uid-machinepool"}}
	machinePool.Spec.ClusterName = clusterName
	machinePool.Spec.Template.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: v1beta1.GroupName, Kind: v1beta1.PoolKind, Name: "workers",
	}
	return machinePool
}

// stored is the member of an instance of shard a as the API server has it.
func stored(id string) *v1beta1.NstanceMachine {
	member := newMember(newPool("a"), newMachinePool(), instance{id, "a"})
	member.UID = types.UID("uid-" + id)
	return member
}

// stranger is an NstanceMachine i-1 that is of no pool.
func stranger() *v1beta1.NstanceMachine {
	return &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "i-1", UID: "uid-stranger"}}
}

// newMachine is the Machine that Cluster API makes for a member.
func newMachine(member string) *clusterv1.Machine {
	return &clusterv1.Machine{
		TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: member, UID: types.UID("uid-machine-" + member),
			Labels: map[string]string{clusterv1.ClusterNameLabel: clusterName, clusterv1.MachinePoolNameLabel: capi.LabelValue("workers")},
		},
		Spec: clusterv1.MachineSpec{
			ClusterName: clusterName,
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: v1beta1.GroupName, Kind: "NstanceMachine", Name: member,
			},
		},
	}
}

func newCluster() *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: clusterName}}
}

// deleted is object as it is once its deletion was asked for.
func deleted[T metav1.Object](object T) T {
	object.SetDeletionTimestamp(ptr.To(metav1.NewTime(start)))
	if len(object.GetFinalizers()) == 0 {
		object.SetFinalizers([]string{"example.com/wait"})
	}
	return object
}

func paused[T metav1.Object](object T) T {
	object.SetAnnotations(map[string]string{clusterv1.PausedAnnotation: ""})
	return object
}

// shards are those that are known completely, by id, with the group "workers" of
// each.
type shards map[string]shard.Group

func (s shards) HasSynced(id string) bool {
	_, ok := s[id]
	return ok
}

func (s shards) Get(id, key string) (shard.Group, bool) {
	group, ok := s[id]
	return group, ok && group.Key == key
}

// unread are shards of which something is known, and not all.
type unread struct{ shards }

func (unread) HasSynced(string) bool { return false }

// lists is the group "workers" with instances that run.
func lists(ids ...string) shard.Group {
	group := shard.Group{Key: "workers", ListsInstances: true}
	for _, id := range ids {
		group.Instances = append(group.Instances, shard.Instance{ID: id, State: shard.InstanceRunning})
	}
	return group
}

// as is an instance in a state.
func as(id string, state shard.InstanceState) shard.Group {
	return shard.Group{Key: "workers", ListsInstances: true, Instances: []shard.Instance{{ID: id, State: state}}}
}
