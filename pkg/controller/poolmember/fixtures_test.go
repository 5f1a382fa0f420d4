// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller/controllertest"
	"nstance.dev/operator/pkg/shard"
)

const (
	poolUID = "uid-workers"
)

// start is the time at which tests start.
var start = time.Unix(1_700_000_000, 0)

// newPool returns the pool "workers" of the group "workers" on these shards, whose
// instances have Machines.
func newPool(shards ...v1beta1.Identifier) *v1beta1.NstanceMachinePool {
	return &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "workers", UID: poolUID, ResourceVersion: "1"},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: "workers", Shards: shards},
		Status:     v1beta1.NstanceMachinePoolStatus{InfrastructureMachineKind: "NstanceMachine"},
	}
}

// newShardGroup returns the shard group of a pool on a shard, with the ids of the
// instances that scale-downs selected.
func newShardGroup(pool *v1beta1.NstanceMachinePool, id v1beta1.Identifier, selected ...string) *v1beta1.NstanceShardGroup {
	return &v1beta1.NstanceShardGroup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: controllertest.Namespace, Name: v1beta1.ShardGroupName(string(pool.Spec.Group), string(id)),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pool, v1beta1.SchemeGroupVersion.WithKind(v1beta1.PoolKind))},
		},
		Spec: v1beta1.NstanceShardGroupSpec{Group: pool.Spec.Group, Shard: id, RemoveFirst: selected},
	}
}

// newMachinePool returns the MachinePool of the pool "workers".
func newMachinePool() *clusterv1.MachinePool {
	machinePool := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "workers", UID: "uid-machinepool"}}
	machinePool.Spec.ClusterName = controllertest.ClusterName
	machinePool.Spec.Template.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: v1beta1.GroupName, Kind: v1beta1.PoolKind, Name: "workers",
	}
	return machinePool
}

// stored returns the nstanceMachine of an instance on shard a as the API server has it.
func stored(id string) *v1beta1.NstanceMachine {
	nstanceMachine := newNstanceMachine(newPool("a"), newMachinePool(), instance{id, "a"})
	nstanceMachine.UID = types.UID("uid-" + id)
	return nstanceMachine
}

// foreign returns an NstanceMachine i-1 without a pool.
func foreign() *v1beta1.NstanceMachine {
	return &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "i-1", UID: "uid-foreign"}}
}

// newMachine returns the Machine that Cluster API creates for an nstanceMachine.
func newMachine(name string) *clusterv1.Machine {
	return &clusterv1.Machine{
		TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: controllertest.Namespace, Name: name, UID: types.UID("uid-machine-" + name),
			Labels: map[string]string{clusterv1.ClusterNameLabel: controllertest.ClusterName, clusterv1.MachinePoolNameLabel: capi.LabelValue("workers")},
		},
		Spec: clusterv1.MachineSpec{
			ClusterName: controllertest.ClusterName,
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: v1beta1.GroupName, Kind: "NstanceMachine", Name: name,
			},
		},
	}
}

func newCluster() *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: controllertest.ClusterName}}
}

// inDeletion returns object as it is while it is being deleted.
func inDeletion[T metav1.Object](object T) T {
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

// byShard are the groups "workers" that shards report, by shard. All shards that are
// listed are configured and synced.
type byShard = map[string]shard.Group

// running returns the group "workers" with running instances.
func running(ids ...string) shard.Group {
	group := shard.Group{Key: "workers", ListsInstances: true}
	for _, id := range ids {
		group.Instances = append(group.Instances, shard.Instance{ID: id, State: shard.InstanceRunning})
	}
	return group
}

// inState returns the group "workers" with one instance in a state.
func inState(id string, state shard.InstanceState) shard.Group {
	return shard.Group{Key: "workers", ListsInstances: true, Instances: []shard.Instance{{ID: id, State: state}}}
}
