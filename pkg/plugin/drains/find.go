// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
)

// Find returns the drains of the Nodes in a snapshot, sorted by Node.
func Find(s *objects.Snapshot) []Drain {
	var found []Drain
	begun := begin(s)
	for i := range s.Nodes.Items {
		node := &s.Nodes.Items[i]
		if d := begun[node.Name]; d != nil {
			d.complete(s, node)
			found = append(found, *d)
		}
	}
	slices.SortFunc(found, func(a, b Drain) int { return cmp.Compare(a.Node, b.Node) })
	return found
}

// Nodes returns the names of the Nodes that Find returns, sorted. It needs neither Pods nor
// VolumeAttachments nor events.
func Nodes(s *objects.Snapshot) []string {
	var names []string
	begun := begin(s)
	for i := range s.Nodes.Items {
		if name := s.Nodes.Items[i].Name; begun[name] != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// begin returns the drains by Node, with what their objects say themselves.
func begin(s *objects.Snapshot) map[string]*Drain {
	found := map[string]*Drain{}
	at := func(node string) *Drain {
		if found[node] == nil {
			found[node] = &Drain{Node: node, Pods: []Pod{}, Volumes: []string{}}
		}
		return found[node]
	}
	for i := range s.Nodes.Items {
		node := &s.Nodes.Items[i]
		if shard, instance, ok := objects.CordonedFor(node); ok {
			at(node.Name).addShard(shard, instance, cordonedSince(node))
		}
	}
	nodes := s.IndexNodes()
	for i := range s.NstanceMachines.Items {
		machine := &s.NstanceMachines.Items[i]
		condition := meta.FindStatusCondition(machine.Status.Conditions, v1beta1.ConditionDrainsProgressing)
		if condition == nil || condition.Reason == v1beta1.ReasonNoDrains {
			continue
		}
		// A Node that another client has cordoned has no annotation.
		for _, node := range nodes.WithProviderID(objects.ProviderIDOf(machine)) {
			at(node.Name).addShard(machine.Status.Shard, machine.Status.InstanceID, condition.LastTransitionTime.Time)
		}
	}
	for i := range s.Machines.Items {
		machine := &s.Machines.Items[i]
		if name := machine.Status.NodeRef.Name; name != "" && drainedByClusterAPI(machine) {
			at(name).addMachine(machine)
		}
	}
	return found
}

func (d *Drain) addShard(shard, instance string, since time.Time) {
	if slices.Contains(d.By, ByShard) {
		return
	}
	d.By = append(d.By, ByShard)
	d.Shard, d.Instance, d.Since = shard, instance, since
}

// drainedByClusterAPI reports whether Cluster API drains the Node of a Machine, or waits for
// its volumes.
func drainedByClusterAPI(machine *clusterv1.Machine) bool {
	if machine.DeletionTimestamp.IsZero() {
		return false
	}
	deleting := meta.FindStatusCondition(machine.Status.Conditions, clusterv1.MachineDeletingCondition)
	return deleting != nil && (deleting.Reason == clusterv1.MachineDeletingDrainingNodeReason ||
		deleting.Reason == clusterv1.MachineDeletingWaitingForPreDrainHookReason ||
		deleting.Reason == clusterv1.MachineDeletingWaitingForVolumeDetachReason)
}

func (d *Drain) addMachine(machine *clusterv1.Machine) {
	d.By = append(d.By, ByClusterAPI)
	d.Namespace, d.Machine = machine.Namespace, machine.Name
	started := machine.DeletionTimestamp.Time
	if deletion := machine.Status.Deletion; deletion != nil && !deletion.NodeDrainStartTime.IsZero() {
		started = deletion.NodeDrainStartTime.Time
	}
	if d.Since.IsZero() {
		d.Since = started
	}
	if timeout := machine.Spec.Deletion.NodeDrainTimeoutSeconds; timeout != nil && *timeout > 0 {
		d.Deadline = started.Add(time.Duration(*timeout) * time.Second)
	}
	if deleting := meta.FindStatusCondition(machine.Status.Conditions, clusterv1.MachineDeletingCondition); deleting != nil && deleting.Message != "" {
		d.Messages = append(d.Messages, strings.Join(strings.Fields(deleting.Message), " "))
	}
}

// cordonedSince returns when the operator has annotated a Node for its drain, zero if that is
// not known.
func cordonedSince(node *corev1.Node) time.Time {
	writer, _ := objects.WriterOf(node, "f:metadata", "f:annotations", "f:"+v1beta1.AnnotationCordonedFor)
	return writer.At
}

// locate sets the pool of a drain, and returns the shard group and whether an object has the
// instance.
func (d *Drain) locate(s *objects.Snapshot, node *corev1.Node) (group *v1beta1.NstanceShardGroup, reported bool) {
	group = s.ShardGroupOf(node.Spec.ProviderID, d.Shard)
	machine := s.NstanceMachineOf(node.Spec.ProviderID)
	var owner *metav1.OwnerReference
	switch {
	case group != nil:
		d.Namespace, d.Shard, owner = group.Namespace, string(group.Spec.Shard), objects.PoolOf(group)
	case machine != nil:
		d.Namespace, owner = machine.Namespace, objects.PoolOf(machine)
		d.Shard = cmp.Or(d.Shard, machine.Status.Shard)
	}
	if machine != nil {
		d.Machine = machine.Name
		d.Instance = cmp.Or(d.Instance, machine.Status.InstanceID)
	}
	switch {
	case owner != nil:
		d.Pool = owner.Name
	case group == nil && machine == nil:
		d.PoolUnknown = cmp.Or(s.ShardGroups.Unknown, s.NstanceMachines.Unknown)
	}
	return group, group != nil || machine != nil || slices.Contains(d.By, ByClusterAPI)
}
