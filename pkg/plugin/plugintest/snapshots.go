// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package plugintest

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
)

// Now is the time of all snapshots.
var Now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Namespace is the namespace of the objects.
const Namespace = "nstance-system"

// Ago returns a time before Now.
func Ago(d time.Duration) metav1.Time { return metav1.NewTime(Now.Add(-d)) }

// Pool is the name of the pool of AtRest, and of its group.
const Pool = "workers"

// Borrowed returns the loan of a shard that has borrowed an instance.
func Borrowed() *v1beta1.Loan {
	return &v1beta1.Loan{Lent: -1, Division: v1beta1.Division{Replicas: 4, Shards: []v1beta1.Identifier{"a", "b", "c"}}}
}

// AtRest returns a pool with 4 instances on 3 shards: a1 and a2 on shard a, b1 on b, c1 on c.
// Each has a Node of its name.
func AtRest() *objects.Snapshot {
	s := &objects.Snapshot{Now: Now, Namespace: Namespace}
	s.Pools.Items = []v1beta1.NstanceMachinePool{{
		ObjectMeta: named(Pool, "pool-uid"),
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: Pool, Shards: []v1beta1.Identifier{"a", "b", "c"}, DeletionPolicy: v1beta1.DeletionDelete},
		Status: v1beta1.NstanceMachinePoolStatus{
			DesiredReplicas: ptr.To[int32](4), Replicas: ptr.To[int32](4), DrainingReplicas: ptr.To[int32](0),
			Conditions: []metav1.Condition{
				condition(v1beta1.ConditionShardsReachable, metav1.ConditionTrue, v1beta1.ReasonReachable, ""),
				condition(v1beta1.ConditionPaused, metav1.ConditionFalse, v1beta1.ReasonNotPaused, ""),
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

// Wrote returns an entry of managed fields: a manager has written fields some time ago.
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
			Replicas: ptr.To(int32(len(instances))), DrainingReplicas: ptr.To[int32](0),
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
		ObjectMeta: metav1.ObjectMeta{
			Name: id, UID: types.UID("node-" + id), CreationTimestamp: Ago(30 * time.Minute),
			Labels: map[string]string{corev1.LabelInstanceTypeStable: "m7i.large", corev1.LabelTopologyZone: "zone-" + shard},
		},
		Spec: corev1.NodeSpec{ProviderID: ProviderID(shard, id)},
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

// Order has a shard report its deletion order, for the instances that it reports.
func Order(s *objects.Snapshot, shard string, instances ...string) {
	group := Group(s, shard)
	for _, id := range instances {
		group.Status.DeletionOrder = append(group.Status.DeletionOrder, v1beta1.NextDeletion{Instance: id, ProviderID: ProviderID(shard, id)})
	}
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

// Drain has the operator drain the Node of an instance since 2 minutes, with a deadline in 3
// minutes. An empty reason means that the Node does not have the annotation.
func Drain(s *objects.Snapshot, shard, instance, reason string) {
	node := s.Node(instance)
	node.Spec.Unschedulable = true
	node.Annotations = map[string]string{v1beta1.AnnotationCordonedFor: shard + "/" + instance}
	node.ManagedFields = []metav1.ManagedFieldsEntry{
		Wrote("nstance-operator", 2*time.Minute, `{"f:metadata":{"f:annotations":{"f:nstance.dev/cordoned-for":{}}}}`),
	}
	group := Group(s, shard)
	group.Status.DrainingReplicas = ptr.To(ptr.Deref(group.Status.DrainingReplicas, 0) + 1)
	pool := &s.Pools.Items[0]
	pool.Status.DrainingReplicas = ptr.To(ptr.Deref(pool.Status.DrainingReplicas, 0) + 1)
	if s.Pods == nil {
		s.Pods = map[string]objects.Read[corev1.Pod]{}
		s.Budgets = map[string]objects.Read[policyv1.PodDisruptionBudget]{"web": {}}
	}
	s.Pods[instance] = objects.Read[corev1.Pod]{}
	node.Annotations[v1beta1.AnnotationDeleteAt] = Now.Add(3 * time.Minute).Format(time.RFC3339)
	if reason != "" {
		node.Annotations[v1beta1.AnnotationDrainReason] = reason
	}
}

// AddBlockedDrain has the operator report the drain of an instance as blocked.
func AddBlockedDrain(s *objects.Snapshot, shard string, entry v1beta1.BlockedDrain) {
	status := &Group(s, shard).Status
	entry.Since = Ago(time.Minute)
	status.BlockedDrains = append(status.BlockedDrains, entry)
	status.BlockedReplicas = ptr.To(ptr.Deref(status.BlockedReplicas, 0) + 1)
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

// AddDrainRule adds a MachineDrainRule for the Pods with a label app. It selects the machines and the
// namespaces of selectors; nil selects all.
func AddDrainRule(s *objects.Snapshot, name string, drain clusterv1.MachineDrainRuleDrainConfig, app string, machines, namespaces *metav1.LabelSelector) {
	rule := clusterv1.MachineDrainRule{ObjectMeta: named(name, "rule-"+name), Spec: clusterv1.MachineDrainRuleSpec{Drain: drain}}
	rule.Spec.Machines = []clusterv1.MachineDrainRuleMachineSelector{{Selector: machines}}
	rule.Spec.Pods = []clusterv1.MachineDrainRulePodSelector{{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, NamespaceSelector: namespaces,
	}}
	s.DrainRules.Items = append(s.DrainRules.Items, rule)
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

// Candidates gives the pool of AtRest candidates: an instance of shard b is a fallback, and shard c has
// not reported its instances by candidate.
func Candidates(s *objects.Snapshot) {
	pool := &s.Pools.Items[0]
	pool.Spec.Candidates = []v1beta1.Candidate{
		{Name: "base", Market: v1beta1.MarketStandard, MaxReplicas: ptr.To(intstr.FromString("25%"))},
		{Name: "spot", Market: v1beta1.MarketSpot},
		{Name: "fallback", InstanceType: "m6i.large"},
	}
	for id, use := range map[string][]int32{"a": {1, 1, 0}, "b": {0, 0, 1}} {
		status := &Group(s, id).Status
		status.Candidates = []v1beta1.CandidateUse{
			{Name: "base", InstanceType: "m7i.large", Market: "Standard", Replicas: use[0]},
			{Name: "spot", InstanceType: "m7i.large", Market: "Spot", Replicas: use[1]},
			{Name: "fallback", InstanceType: "m6i.large", Market: "Standard", Replicas: use[2]},
		}
	}
	Group(s, "b").Status.Candidates[1].Unavailable = "InsufficientInstanceCapacity"
	SetCondition(&pool.Status.Conditions, v1beta1.ConditionPreferredInstances, metav1.ConditionFalse, v1beta1.ReasonFallback,
		"1 of 3 instances is m6i.large Standard (candidate fallback): b has no m7i.large Spot: InsufficientInstanceCapacity; not known: c was not read yet")
}
