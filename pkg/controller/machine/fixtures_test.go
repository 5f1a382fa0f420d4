// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

const (
	namespace   = "default"
	clusterName = "cluster--default"
)

// newMachine asks for one instance of the group "workers". The Machine of its name
// owns it.
func newMachine(name string) *v1beta1.NstanceMachine {
	return &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name), Generation: 1,
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(newOwner(name), clusterv1.GroupVersion.WithKind("Machine")),
			},
		},
		Spec: v1beta1.NstanceMachineSpec{
			GroupRef: v1beta1.GroupReference{Name: "workers"}, InstanceType: "large", Vars: map[string]string{"a": "1"},
		},
	}
}

// newMember stands for an instance of the group "workers" on shard a, which has its
// name. No Machine owns it yet.
func newMember(name string) *v1beta1.NstanceMachine {
	pool := newPool()
	return &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name), Generation: 1,
			Labels:     map[string]string{clusterv1.MachinePoolNameLabel: "pool"},
			Finalizers: []string{v1beta1.FinalizerMachine},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: v1beta1.SchemeGroupVersion.String(), Kind: v1beta1.PoolKind, Name: pool.Name, UID: pool.UID},
			},
		},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}, Shard: "a"},
	}
}

// runningMember is one whose instance runs, as that was reported.
func runningMember(name string) *v1beta1.NstanceMachine {
	machine := running(newMember(name), name)
	machine.Status.RequestID = ""
	return machine
}

func withoutShard(machine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	machine.Spec.Shard = ""
	return machine
}

func labelled(machine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	machine.Labels = newMember(machine.Name).Labels
	return machine
}

// owned has the Machine of its name own a machine.
func owned(machine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	machine.OwnerReferences = append(machine.OwnerReferences, newMachine(machine.Name).OwnerReferences...)
	return machine
}

// newPool has the group "workers" on shards a and b.
func newPool() *v1beta1.NstanceMachinePool {
	return &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pool", UID: "uid-of-pool"},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: "workers", Shards: []v1beta1.Identifier{"a", "b"}},
	}
}

// newOwner is a Machine without bootstrap data of its own.
func newOwner(name string) *clusterv1.Machine {
	return &clusterv1.Machine{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-of-owner-" + name), ResourceVersion: "7"},
		Spec: clusterv1.MachineSpec{
			ClusterName: clusterName,
			Bootstrap:   clusterv1.Bootstrap{DataSecretName: ptr.To("")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: v1beta1.GroupName, Kind: v1beta1.MachineKind, Name: name,
			},
		},
	}
}

// newShardGroup is the part of the pool on a shard.
func newShardGroup(id string, size int32, removeFirst ...string) *v1beta1.NstanceShardGroup {
	return &v1beta1.NstanceShardGroup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: v1beta1.ShardGroupName("workers", id), UID: types.UID("uid-of-workers-on-" + id),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(newPool(), v1beta1.SchemeGroupVersion.WithKind(v1beta1.PoolKind))},
		},
		Spec: v1beta1.NstanceShardGroupSpec{Group: "workers", Shard: v1beta1.Identifier(id), Size: size, RemoveFirst: removeFirst},
	}
}

// newMachinePool is the one that refers to the pool.
func newMachinePool(replicas int32) *clusterv1.MachinePool {
	return &clusterv1.MachinePool{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "machine-pool", UID: "uid-of-machine-pool"},
		Spec: clusterv1.MachinePoolSpec{
			ClusterName: clusterName,
			Replicas:    &replicas,
			Template: clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{
				ClusterName: clusterName,
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{
					APIGroup: v1beta1.GroupName, Kind: v1beta1.PoolKind, Name: "pool",
				},
			}},
		},
	}
}

func newCluster() *clusterv1.Cluster {
	return &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: clusterName},
		Status:     clusterv1.ClusterStatus{Initialization: clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: ptr.To(true)}},
	}
}

func newNode(name, providerID string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-node-" + name)},
		Spec:       corev1.NodeSpec{ProviderID: providerID},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: "Carrier", Address: "pigeon"}, {Type: corev1.NodeHostName, Address: name},
		}},
	}
}

// The stages of a machine's life, each with what those before it have left behind.

func holding(machine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	machine.Finalizers = []string{v1beta1.FinalizerMachine}
	return machine
}

func claiming(machine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	holding(machine)
	machine.Status.Shard, machine.Status.RequestID = "a", string(machine.UID)
	return machine
}

func having(machine *v1beta1.NstanceMachine, instance string) *v1beta1.NstanceMachine {
	claiming(machine).Status.InstanceID = instance
	return machine
}

func running(machine *v1beta1.NstanceMachine, instance string) *v1beta1.NstanceMachine {
	having(machine, instance)
	machine.Spec.ProviderID = "provider-" + instance
	machine.Status.ProviderID = machine.Spec.ProviderID
	machine.Status.Ready, machine.Status.Initialization.Provisioned = ptr.To(true), ptr.To(true)
	machine.Status.ObservedGeneration = 1
	setCondition(machine, v1beta1.ConditionInstanceCreated, metav1.ConditionTrue, v1beta1.ReasonInstanceCreated, "")
	setCondition(machine, v1beta1.ConditionPaused, metav1.ConditionFalse, v1beta1.ReasonNotPaused, "")
	setCondition(machine, v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady, "")
	return machine
}

func deleting(machine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	machine.DeletionTimestamp = ptr.To(metav1.Now())
	return machine
}

func endedByServer(machine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	setCondition(machine, v1beta1.ConditionServerDeleted, metav1.ConditionTrue, v1beta1.ReasonServerDeleted, "unhealthy")
	return machine
}

func setCondition(machine *v1beta1.NstanceMachine, kind string, status metav1.ConditionStatus, reason, message string) {
	controller.SetCondition(&machine.Status.Conditions, machine.Generation, kind, status, reason, message)
}

// told is a condition of a machine in words, "" when it has none of that type.
func told(machine *v1beta1.NstanceMachine, kind string) string {
	condition := meta.FindStatusCondition(machine.Status.Conditions, kind)
	if condition == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", condition.Status, condition.Reason, condition.Message)
}
