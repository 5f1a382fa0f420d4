// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package plugintest

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/drainnote"
	"nstance.dev/operator/pkg/plugin/objects"
)

// Drain has the operator drain the Node of an instance since 2 minutes, with a deadline in 3
// minutes. An empty reason means that the event does not exist any more.
func Drain(s *objects.Snapshot, shard, instance, reason string) {
	node := s.Node(instance)
	node.Spec.Unschedulable = true
	node.Annotations = map[string]string{v1beta1.AnnotationCordonedFor: shard + "/" + instance}
	node.ManagedFields = []metav1.ManagedFieldsEntry{
		Wrote("nstance-operator", 2*time.Minute, `{"f:metadata":{"f:annotations":{"f:nstance.dev/cordoned-for":{}}}}`),
	}
	group := Group(s, shard)
	group.Status.Draining = ptr.To(ptr.Deref(group.Status.Draining, 0) + 1)
	pool := &s.Pools.Items[0]
	pool.Status.Draining = ptr.To(ptr.Deref(pool.Status.Draining, 0) + 1)
	if s.Pods == nil {
		s.Pods = map[string]objects.Read[corev1.Pod]{}
		s.Budgets = map[string]objects.Read[policyv1.PodDisruptionBudget]{"web": {}}
	}
	s.Pods[instance] = objects.Read[corev1.Pod]{}
	if reason != "" {
		note := drainnote.Note{Shard: shard, Instance: instance, Reason: reason, DeleteAt: Now.Add(3 * time.Minute)}
		AddEvent(s, instance, drainnote.Reason, note.String())
	}
}

// AddEvent adds an event of a minute ago about a Node.
func AddEvent(s *objects.Snapshot, node, reason, note string) {
	s.NodeEvents.Items = append(s.NodeEvents.Items, eventsv1.Event{
		Reason: reason, Note: note, EventTime: metav1.NewMicroTime(Now.Add(-time.Minute)), ReportingController: "nstance-operator",
		Regarding: corev1.ObjectReference{Kind: "Node", Name: node, UID: types.UID("node-" + node)},
	})
}

// AddPod adds a Pod in namespace web, with the label app of its name, to a Node.
func AddPod(s *objects.Snapshot, node, name string, change func(*corev1.Pod)) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	if change != nil {
		change(&pod)
	}
	read := s.Pods[node]
	read.Items = append(read.Items, pod)
	s.Pods[node] = read
}

// AddBudget adds a PodDisruptionBudget that selects the Pod of a name and allows so many
// disruptions.
func AddBudget(s *objects.Snapshot, name, pod string, allowed int32) {
	read := s.Budgets["web"]
	read.Items = append(read.Items, policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": pod}}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, CurrentHealthy: 1, DesiredHealthy: 1, ExpectedPods: 1},
	})
	s.Budgets["web"] = read
}

// AddVolume attaches a volume to a Node.
func AddVolume(s *objects.Snapshot, node, volume string) {
	s.Attachments.Items = append(s.Attachments.Items, storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "csi-" + volume},
		Spec:       storagev1.VolumeAttachmentSpec{NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}},
	})
}

// AddMachines gives an instance an NstanceMachine and a Machine.
func AddMachines(s *objects.Snapshot, shard, instance string) (*v1beta1.NstanceMachine, *clusterv1.Machine) {
	owned := v1beta1.NstanceMachine{ObjectMeta: named(Pool+"-"+instance, "nm-"+instance)}
	owned.OwnerReferences = []metav1.OwnerReference{PoolOwner()}
	owned.Spec.GroupRef.Name, owned.Spec.ProviderID = Pool, ProviderID(shard, instance)
	owned.Status.Shard, owned.Status.InstanceID, owned.Status.ProviderID = shard, instance, ProviderID(shard, instance)
	owned.Status.Conditions = []metav1.Condition{condition(v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady, "")}
	machine := clusterv1.Machine{ObjectMeta: named(Pool+"-"+instance, "m-"+instance)}
	machine.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: v1beta1.GroupName, Kind: v1beta1.MachineKind, Name: owned.Name,
	}
	machine.Status.NodeRef.Name = instance
	s.NstanceMachines.Items = append(s.NstanceMachines.Items, owned)
	s.Machines.Items = append(s.Machines.Items, machine)
	return &s.NstanceMachines.Items[len(s.NstanceMachines.Items)-1], &s.Machines.Items[len(s.Machines.Items)-1]
}

// AddOnDemand adds the NstanceMachine of Pod web/build, without an instance.
func AddOnDemand(s *objects.Snapshot) *v1beta1.NstanceMachine {
	owned := v1beta1.NstanceMachine{ObjectMeta: named("on-demand-pod-uid", "nm-on-demand")}
	owned.Labels = map[string]string{v1beta1.LabelPodUID: "pod-uid"}
	owned.Annotations = map[string]string{v1beta1.AnnotationPodNamespace: "web", v1beta1.AnnotationPodName: "build"}
	owned.Spec.GroupRef.Name = Pool
	owned.Status.Shard = "a"
	owned.Status.Conditions = []metav1.Condition{
		condition(v1beta1.ConditionInstanceCreated, metav1.ConditionFalse, v1beta1.ReasonOutOfCapacity, "no shard has capacity"),
	}
	s.NstanceMachines.Items = append(s.NstanceMachines.Items, owned)
	return &s.NstanceMachines.Items[len(s.NstanceMachines.Items)-1]
}
