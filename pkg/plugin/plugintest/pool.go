// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package plugintest

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
)

// Now is the time of all snapshots.
var Now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Namespace is that of the objects.
const Namespace = "nstance-system"

// Ago returns a time before Now.
func Ago(d time.Duration) metav1.Time { return metav1.NewTime(Now.Add(-d)) }

// Pool is the name of the pool of AtRest, and of its group.
const Pool = "workers"

// AtRest returns a pool with 4 instances on 3 shards: a1 and a2 on shard a, b1 on b, c1 on c.
// Each has a Node of its name.
func AtRest() *objects.Snapshot {
	s := &objects.Snapshot{Now: Now, Namespace: Namespace}
	s.Pools.Items = []v1beta1.NstanceMachinePool{{
		ObjectMeta: named(Pool, "pool-uid"),
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: Pool, Shards: []v1beta1.Identifier{"a", "b", "c"}, DeletionPolicy: v1beta1.DeletionDelete},
		Status: v1beta1.NstanceMachinePoolStatus{
			DesiredReplicas: ptr.To[int32](4), Replicas: ptr.To[int32](4), Draining: ptr.To[int32](0),
			Conditions: []metav1.Condition{
				condition(v1beta1.ConditionShardsReachable, metav1.ConditionTrue, v1beta1.ReasonReachable, ""),
				condition(v1beta1.ConditionPaused, metav1.ConditionFalse, v1beta1.ReasonNotPaused, ""),
				condition(v1beta1.ConditionMachinesEnabled, metav1.ConditionFalse, v1beta1.ReasonMachinesDisabled, "spec.machines is Auto"),
				condition(v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady, ""),
			},
		},
	}}
	machinePool := clusterv1.MachinePool{ObjectMeta: named(Pool, "mp-uid"), Spec: clusterv1.MachinePoolSpec{Replicas: ptr.To[int32](4)}}
	machinePool.Spec.Template.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: v1beta1.GroupName, Kind: v1beta1.PoolKind, Name: Pool,
	}
	machinePool.ManagedFields = []metav1.ManagedFieldsEntry{Wrote("kubectl-edit", 20*time.Minute, `{"f:spec":{"f:replicas":{}}}`)}
	s.MachinePools.Items = []clusterv1.MachinePool{machinePool}
	for _, shard := range []struct {
		id        string
		instances []string
	}{{"a", []string{"a1", "a2"}}, {"b", []string{"b1"}}, {"c", []string{"c1"}}} {
		s.ShardGroups.Items = append(s.ShardGroups.Items, shardGroup(shard.id, shard.instances...))
		for _, id := range shard.instances {
			s.Nodes.Items = append(s.Nodes.Items, NewNode(shard.id, id))
		}
	}
	return s
}

// Wrote returns managed fields: who has written which fields how long ago.
func Wrote(manager string, ago time.Duration, fields string) metav1.ManagedFieldsEntry {
	at := Ago(ago)
	entry := metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, Time: &at, FieldsV1: &metav1.FieldsV1{}}
	entry.FieldsV1.SetRawString(fields)
	return entry
}

func named(name, uid string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: Namespace, Name: name, UID: types.UID(uid), CreationTimestamp: Ago(time.Hour)}
}

func condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: Ago(10 * time.Minute)}
}

func shardGroup(shard string, instances ...string) v1beta1.NstanceShardGroup {
	group := v1beta1.NstanceShardGroup{
		ObjectMeta: named(v1beta1.ShardGroupName(Pool, shard), "group-"+shard),
		Spec:       v1beta1.NstanceShardGroupSpec{Group: Pool, Shard: v1beta1.Identifier(shard), Size: int32(len(instances))},
		Status: v1beta1.NstanceShardGroupStatus{
			Replicas: ptr.To(int32(len(instances))), Draining: ptr.To[int32](0),
			Conditions: []metav1.Condition{
				condition(v1beta1.ConditionShardReachable, metav1.ConditionTrue, v1beta1.ReasonReachable, ""),
				condition(v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady, ""),
			},
		},
	}
	group.OwnerReferences = []metav1.OwnerReference{PoolOwner()}
	group.ManagedFields = []metav1.ManagedFieldsEntry{Wrote("nstance-operator", 19*time.Minute, `{"f:spec":{"f:size":{}}}`)}
	for _, id := range instances {
		group.Status.ProviderIDs = append(group.Status.ProviderIDs, ProviderID(shard, id))
	}
	return group
}

// PoolOwner is the owner reference to the pool.
func PoolOwner() metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: v1beta1.GroupName + "/v1beta1", Kind: v1beta1.PoolKind, Name: Pool, UID: "pool-uid", Controller: ptr.To(true)}
}

// ProviderID is the provider id of an instance.
func ProviderID(shard, id string) string { return fmt.Sprintf("kwok:///%s/%s", shard, id) }

// NewNode returns the Node of an instance.
func NewNode(shard, id string) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: id, UID: types.UID("node-" + id), CreationTimestamp: Ago(30 * time.Minute)},
		Spec:       corev1.NodeSpec{ProviderID: ProviderID(shard, id)},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: Ago(29 * time.Minute)},
		}},
	}
}

// Group returns the shard group of a shard.
func Group(s *objects.Snapshot, shard string) *v1beta1.NstanceShardGroup {
	for i := range s.ShardGroups.Items {
		if group := &s.ShardGroups.Items[i]; string(group.Spec.Shard) == shard {
			return group
		}
	}
	panic("no shard " + shard)
}

// SetCondition sets a condition that changed a minute ago.
func SetCondition(conditions *[]metav1.Condition, kind string, status metav1.ConditionStatus, reason, message string) {
	changed := condition(kind, status, reason, message)
	changed.LastTransitionTime = Ago(time.Minute)
	for i := range *conditions {
		if (*conditions)[i].Type == kind {
			(*conditions)[i] = changed
			return
		}
	}
	*conditions = append(*conditions, changed)
}
