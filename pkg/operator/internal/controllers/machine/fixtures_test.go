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
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// newNstanceMachine returns one for an instance of the group "workers". The Machine
// with the same name owns it.
func newNstanceMachine(name string) *v1beta1.NstanceMachine {
	return &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: controllertest.Namespace, Name: name, UID: types.UID("uid-of-" + name), Generation: 1,
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(newMachine(name), clusterv1.GroupVersion.WithKind("Machine")),
			},
		},
		Spec: v1beta1.NstanceMachineSpec{
			GroupRef: v1beta1.GroupReference{Name: "workers"}, InstanceType: "large", Vars: map[string]string{"a": "1"},
		},
	}
}

// newPoolMember returns one for an instance of a pool: of the group "workers" on shard
// a, with the same name. No Machine owns it yet.
func newPoolMember(name string) *v1beta1.NstanceMachine {
	pool := newPool()
	return &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: controllertest.Namespace, Name: name, UID: types.UID("uid-of-" + name), Generation: 1,
			Labels:     map[string]string{clusterv1.MachinePoolNameLabel: "pool"},
			Finalizers: []string{v1beta1.FinalizerMachine},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: v1beta1.SchemeGroupVersion.String(), Kind: v1beta1.PoolKind, Name: pool.Name, UID: pool.UID},
			},
		},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}, Shard: "a"},
	}
}

// runningPoolMember returns a pool member whose instance is reported as running.
func runningPoolMember(name string) *v1beta1.NstanceMachine {
	nstanceMachine := running(newPoolMember(name), name)
	nstanceMachine.Status.RequestID, nstanceMachine.Annotations = "", nil
	return nstanceMachine
}

func withoutShard(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	nstanceMachine.Spec.Shard = ""
	return nstanceMachine
}

func withPoolLabel(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	nstanceMachine.Labels = newPoolMember(nstanceMachine.Name).Labels
	return nstanceMachine
}

// owned makes the Machine with the same name the owner.
func owned(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	nstanceMachine.OwnerReferences = append(nstanceMachine.OwnerReferences, newNstanceMachine(nstanceMachine.Name).OwnerReferences...)
	return nstanceMachine
}

// newPool returns the pool of the group "workers" on shards a and b.
func newPool() *v1beta1.NstanceMachinePool {
	return &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "pool", UID: "uid-of-pool"},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: "workers", Shards: []v1beta1.Identifier{"a", "b"}},
	}
}

// newMachine returns a Machine with empty bootstrap data.
func newMachine(name string) *clusterv1.Machine {
	machine := controllertest.NewMachine(name)
	machine.ResourceVersion, machine.Spec.Bootstrap.DataSecretName = "7", ptr.To("")
	return machine
}

// newShardGroup returns the part of the pool on a shard.
func newShardGroup(id string, size int32, removeFirst ...string) *v1beta1.NstanceShardGroup {
	group := controllertest.NewShardGroup(newPool(), v1beta1.Identifier(id))
	group.Spec.Size, group.Spec.RemoveFirst = size, removeFirst
	return group
}

// newMachinePool returns the MachinePool that refers to the pool.
func newMachinePool(replicas int32) *clusterv1.MachinePool {
	machinePool := controllertest.NewMachinePool("machine-pool", "pool")
	machinePool.Spec.Replicas = &replicas
	return machinePool
}

func newCluster() *clusterv1.Cluster {
	cluster := controllertest.NewCluster()
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	return cluster
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

// The following functions bring an NstanceMachine to a stage of its life, with all
// that the stages before it have written.

func withFinalizer(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	nstanceMachine.Finalizers = []string{v1beta1.FinalizerMachine}
	return nstanceMachine
}

func withShard(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	withFinalizer(nstanceMachine)
	nstanceMachine.Status.Shard, nstanceMachine.Status.RequestID = "a", string(nstanceMachine.UID)
	nstanceMachine.Annotations = map[string]string{v1beta1.AnnotationRequest: "a/" + string(nstanceMachine.UID)}
	return nstanceMachine
}

func withInstance(nstanceMachine *v1beta1.NstanceMachine, instance string) *v1beta1.NstanceMachine {
	withShard(nstanceMachine).Status.InstanceID = instance
	return nstanceMachine
}

func running(nstanceMachine *v1beta1.NstanceMachine, instance string) *v1beta1.NstanceMachine {
	withInstance(nstanceMachine, instance)
	nstanceMachine.Annotations[v1beta1.AnnotationInstanceID] = instance
	nstanceMachine.Spec.ProviderID = "provider-" + instance
	nstanceMachine.Status.ProviderID = nstanceMachine.Spec.ProviderID
	nstanceMachine.Status.Ready, nstanceMachine.Status.Initialization.Provisioned = ptr.To(true), ptr.To(true)
	nstanceMachine.Status.ObservedGeneration = 1
	setCondition(nstanceMachine, v1beta1.ConditionInstanceCreated, metav1.ConditionTrue, v1beta1.ReasonInstanceCreated, "")
	setCondition(nstanceMachine, v1beta1.ConditionPaused, metav1.ConditionFalse, v1beta1.ReasonNotPaused, "")
	setCondition(nstanceMachine, v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady, "")
	return nstanceMachine
}

func deleting(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	nstanceMachine.DeletionTimestamp = ptr.To(metav1.Now())
	return nstanceMachine
}

func withServerDeleted(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	setCondition(nstanceMachine, v1beta1.ConditionServerDeleted, metav1.ConditionTrue, v1beta1.ReasonServerDeleted, "unhealthy")
	return nstanceMachine
}

func setCondition(nstanceMachine *v1beta1.NstanceMachine, kind string, status metav1.ConditionStatus, reason, message string) {
	controller.SetCondition(&nstanceMachine.Status.Conditions, nstanceMachine.Generation, kind, status, reason, message)
}

// conditionOf returns a condition as text, "" when there is none of that type.
func conditionOf(nstanceMachine *v1beta1.NstanceMachine, kind string) string {
	condition := meta.FindStatusCondition(nstanceMachine.Status.Conditions, kind)
	if condition == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", condition.Status, condition.Reason, condition.Message)
}
