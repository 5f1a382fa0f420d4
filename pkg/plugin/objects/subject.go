// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package objects

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/providerid"
)

// Subject is an instance and the objects that belong to it. An object that does not exist,
// or is not known, is nil.
type Subject struct {
	Node           *corev1.Node
	NstanceMachine *v1beta1.NstanceMachine
	Machine        *clusterv1.Machine
	ShardGroup     *v1beta1.NstanceShardGroup
	Pool           *v1beta1.NstanceMachinePool
	MachinePool    *clusterv1.MachinePool
	// reported is the provider id of an instance that a shard group reports, and that has neither
	// Node nor NstanceMachine.
	reported string
}

// Locate returns the instance of a Node, or of an NstanceMachine that has this name or
// instance id, or the instance with this provider id that a shard group reports.
func (s *Snapshot) Locate(name string) Subject {
	subject := Subject{Node: s.Node(name)}
	if subject.Node != nil {
		subject.NstanceMachine = s.NstanceMachineOf(subject.Node.Spec.ProviderID)
	} else {
		if subject.NstanceMachine = s.nstanceMachineNamed(name); subject.NstanceMachine == nil {
			subject.reported = s.reportedID(name)
			subject.NstanceMachine = s.NstanceMachineOf(subject.reported)
		}
		if nodes := s.IndexNodes().WithProviderID(subject.ProviderID()); len(nodes) == 1 {
			subject.Node = nodes[0]
		}
	}
	var owned metav1.Object
	if machine := subject.NstanceMachine; machine != nil {
		subject.Machine, owned = s.MachineOf(machine), machine
	}
	if group := s.ShardGroupOf(subject.ProviderID(), ""); group != nil {
		subject.ShardGroup, owned = group, group
	}
	if owned == nil {
		return subject
	}
	if owner := PoolOf(owned); owner != nil {
		subject.Pool = s.Pool(owned.GetNamespace(), owner.Name)
	}
	if subject.Pool == nil {
		return subject
	}
	subject.MachinePool = s.MachinePoolOf(subject.Pool)
	for _, group := range s.ShardGroupsOf(subject.Pool) {
		// The instance does not run yet, so no shard group reports it.
		if subject.ShardGroup == nil && subject.NstanceMachine != nil && string(group.Spec.Shard) == subject.NstanceMachine.Status.Shard {
			subject.ShardGroup = group
		}
	}
	return subject
}

// Found reports whether there is a Node, an NstanceMachine or a reported instance.
func (s Subject) Found() bool { return s.Node != nil || s.NstanceMachine != nil || s.reported != "" }

// ProviderID returns the provider id of the instance, empty if it is not known yet.
func (s Subject) ProviderID() string {
	switch {
	case s.Node != nil && s.Node.Spec.ProviderID != "":
		return s.Node.Spec.ProviderID
	case s.NstanceMachine != nil:
		return ProviderIDOf(s.NstanceMachine)
	}
	return s.reported
}

// reportedID returns the provider id that a shard group reports and whose last part is a name, or
// that is the name; empty if no shard group does.
func (s *Snapshot) reportedID(name string) string {
	for i := range s.ShardGroups.Items {
		for _, id := range s.ShardGroups.Items[i].Status.ProviderIDs {
			if id == name || providerid.Key(id) == name {
				return id
			}
		}
	}
	return ""
}

func (s *Snapshot) nstanceMachineNamed(name string) *v1beta1.NstanceMachine {
	for i := range s.NstanceMachines.Items {
		if machine := &s.NstanceMachines.Items[i]; machine.Name == name || machine.Status.InstanceID == name {
			return machine
		}
	}
	return nil
}

// RequestedBy returns the Pod that has requested the instance. ok is false for an instance of
// a pool, or of another owner.
func (s Subject) RequestedBy() (pod types.NamespacedName, ok bool) {
	if s.NstanceMachine == nil || s.NstanceMachine.Labels[v1beta1.LabelPodUID] == "" {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{
		Namespace: s.NstanceMachine.Annotations[v1beta1.AnnotationPodNamespace],
		Name:      s.NstanceMachine.Annotations[v1beta1.AnnotationPodName],
	}, true
}
