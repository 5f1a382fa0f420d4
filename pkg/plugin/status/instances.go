// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/plugin/drains"
	"nstance.dev/operator/pkg/plugin/objects"
)

// instances returns the instances of a shard group: those that it reports, and those of
// NstanceMachines that do not run yet or any more.
func (b *builder) instances(group *v1beta1.NstanceShardGroup, members []*v1beta1.NstanceMachine) []Instance {
	instances := []Instance{}
	for _, id := range group.Status.ProviderIDs {
		at := slices.IndexFunc(members, func(member *v1beta1.NstanceMachine) bool {
			return providerid.Match(id, objects.ProviderIDOf(member))
		})
		var member *v1beta1.NstanceMachine
		if at >= 0 {
			member = members[at]
			members = slices.Delete(members, at, at+1)
		}
		instances = append(instances, b.instance(id, member, true))
	}
	for _, member := range members {
		instances = append(instances, b.instance(objects.ProviderIDOf(member), member, false))
	}
	slices.SortStableFunc(instances, func(x, y Instance) int { return cmp.Compare(x.Name, y.Name) })
	return instances
}

// instance returns one instance. member is nil if it has no NstanceMachine. reported is set
// if its shard reports that it runs.
func (b *builder) instance(providerID string, member *v1beta1.NstanceMachine, reported bool) Instance {
	result := Instance{Name: providerid.Key(providerID), ProviderID: providerID, State: StateRunning}
	if member != nil {
		result.Machine, result.Created = member.Name, member.CreationTimestamp.Time
		result.Name = cmp.Or(member.Status.InstanceID, result.Name, member.Name)
	}
	var nodes []*corev1.Node
	if providerID != "" {
		nodes = b.nodes.WithProviderID(providerID)
	}
	switch {
	case len(nodes) == 1:
		b.setNode(&result, nodes[0])
	case len(nodes) > 1:
		result.State = StateAmbiguous
	case b.Nodes.Unknown != "" && providerID != "":
		result.State, result.NodeUnknown = StateUnknown, b.Nodes.Unknown
	default:
		result.State = StateNoNode
	}
	switch {
	case member != nil && !member.DeletionTimestamp.IsZero():
		if b.drainOf(nodeName(result.Node)) == nil {
			result.State = StateDeleting
		}
	case member != nil && !reported && result.Node == nil && (providerID == "" || b.Nodes.Unknown == ""):
		result.State = StatePending
	}
	return result
}

func nodeName(node *Node) string {
	if node == nil {
		return ""
	}
	return node.Name
}

// setNode sets the Node of an instance, and the state that follows from it.
func (b *builder) setNode(result *Instance, node *corev1.Node) {
	ready, since := objects.Readiness(node)
	result.Node = &Node{
		Name: node.Name, Created: node.CreationTimestamp.Time, Ready: string(ready), ReadySince: since,
		Unschedulable: node.Spec.Unschedulable,
	}
	if _, id, ok := objects.CordonedFor(node); ok {
		result.Name = id
	}
	if result.Created.IsZero() {
		result.Created = node.CreationTimestamp.Time
	}
	if ready != corev1.ConditionTrue {
		result.State = StateNotReady
	}
	drain := b.drainOf(node.Name)
	switch {
	case drain == nil:
	case drain.State == drains.Unknown:
		result.State, result.DrainUnknown = string(drains.Draining), drain.WhyUnknown()
	default:
		result.State = string(drain.State)
	}
}
