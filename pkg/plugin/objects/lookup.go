// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package objects

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/base/providerid"
)

// PoolOf returns the reference to the pool that owns a shard group or an NstanceMachine, nil
// if no pool owns it.
func PoolOf(object metav1.Object) *metav1.OwnerReference {
	owners := object.GetOwnerReferences()
	at := slices.IndexFunc(owners, func(owner metav1.OwnerReference) bool {
		version, err := schema.ParseGroupVersion(owner.APIVersion)
		return err == nil && version.Group == v1beta1.GroupName && owner.Kind == v1beta1.PoolKind
	})
	if at < 0 {
		return nil
	}
	return &owners[at]
}

// belongsTo reports whether a pool owns an object.
func belongsTo(object metav1.Object, pool *v1beta1.NstanceMachinePool) bool {
	owner := PoolOf(object)
	return owner != nil && owner.UID == pool.UID
}

// Pool returns a pool, nil if the snapshot has none.
func (s *Snapshot) Pool(namespace, name string) *v1beta1.NstanceMachinePool {
	for i := range s.Pools.Items {
		if pool := &s.Pools.Items[i]; pool.Name == name && pool.Namespace == namespace {
			return pool
		}
	}
	return nil
}

// MachinePoolOf returns the MachinePool that refers to a pool, nil if the snapshot has none.
func (s *Snapshot) MachinePoolOf(pool *v1beta1.NstanceMachinePool) *clusterv1.MachinePool {
	for i := range s.MachinePools.Items {
		if mp := &s.MachinePools.Items[i]; mp.Namespace == pool.Namespace && capi.PoolOf(mp) == pool.Name {
			return mp
		}
	}
	return nil
}

// ShardGroupsOf returns the shard groups of a pool, in the order of spec.shards. Shard
// groups of shards that the pool no longer names come last.
func (s *Snapshot) ShardGroupsOf(pool *v1beta1.NstanceMachinePool) []*v1beta1.NstanceShardGroup {
	var groups []*v1beta1.NstanceShardGroup
	for i := range s.ShardGroups.Items {
		if group := &s.ShardGroups.Items[i]; belongsTo(group, pool) {
			groups = append(groups, group)
		}
	}
	position := func(group *v1beta1.NstanceShardGroup) int {
		if at := slices.Index(pool.Spec.Shards, group.Spec.Shard); at >= 0 {
			return at
		}
		return len(pool.Spec.Shards)
	}
	slices.SortStableFunc(groups, func(a, b *v1beta1.NstanceShardGroup) int { return position(a) - position(b) })
	return groups
}

// MembersOf returns the NstanceMachines of a pool.
func (s *Snapshot) MembersOf(pool *v1beta1.NstanceMachinePool) []*v1beta1.NstanceMachine {
	var members []*v1beta1.NstanceMachine
	for i := range s.NstanceMachines.Items {
		if member := &s.NstanceMachines.Items[i]; belongsTo(member, pool) {
			members = append(members, member)
		}
	}
	return members
}

// MachineOf returns the Machine of an NstanceMachine, nil if the snapshot has none.
func (s *Snapshot) MachineOf(owned *v1beta1.NstanceMachine) *clusterv1.Machine {
	for i := range s.Machines.Items {
		if machine := &s.Machines.Items[i]; machine.Namespace == owned.Namespace && capi.NstanceMachineOf(machine) == owned.Name {
			return machine
		}
	}
	return nil
}

// ShardGroupOf returns the shard group that reports an instance, nil if no shard group does.
// An empty shard is any shard.
func (s *Snapshot) ShardGroupOf(providerID, shard string) *v1beta1.NstanceShardGroup {
	for i := range s.ShardGroups.Items {
		group := &s.ShardGroups.Items[i]
		if shard != "" && string(group.Spec.Shard) != shard {
			continue
		}
		if slices.ContainsFunc(group.Status.ProviderIDs, func(id string) bool { return providerid.Match(id, providerID) }) {
			return group
		}
	}
	return nil
}

// NstanceMachineOf returns the NstanceMachine of an instance, nil if the snapshot has none.
func (s *Snapshot) NstanceMachineOf(providerID string) *v1beta1.NstanceMachine {
	for i := range s.NstanceMachines.Items {
		machine := &s.NstanceMachines.Items[i]
		if providerid.Match(ProviderIDOf(machine), providerID) {
			return machine
		}
	}
	return nil
}

// ProviderIDOf returns the provider id of an NstanceMachine, empty if it is not known yet.
func ProviderIDOf(machine *v1beta1.NstanceMachine) string {
	if machine.Status.ProviderID != "" {
		return machine.Status.ProviderID
	}
	return machine.Spec.ProviderID
}

// Nodes finds Nodes by provider id.
type Nodes struct{ byKey map[string][]*corev1.Node }

// IndexNodes returns the Nodes of a snapshot by provider id.
func (s *Snapshot) IndexNodes() Nodes {
	byKey := make(map[string][]*corev1.Node, len(s.Nodes.Items))
	for i := range s.Nodes.Items {
		node := &s.Nodes.Items[i]
		if key := providerid.Key(node.Spec.ProviderID); key != "" {
			byKey[key] = append(byKey[key], node)
		}
	}
	return Nodes{byKey}
}

// WithProviderID returns the Nodes of an instance, at most one unless several Nodes have its
// provider id by mistake.
func (n Nodes) WithProviderID(id string) []*corev1.Node {
	var found []*corev1.Node
	for _, node := range n.byKey[providerid.Key(id)] {
		if providerid.Match(id, node.Spec.ProviderID) {
			found = append(found, node)
		}
	}
	return found
}

// Node returns a Node by name, nil if the snapshot has none.
func (s *Snapshot) Node(name string) *corev1.Node {
	for i := range s.Nodes.Items {
		if s.Nodes.Items[i].Name == name {
			return &s.Nodes.Items[i]
		}
	}
	return nil
}

// Readiness returns the status of the condition Ready of a Node, and the time of its last
// change.
func Readiness(node *corev1.Node) (status corev1.ConditionStatus, since time.Time) {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status, condition.LastTransitionTime.Time
		}
	}
	return corev1.ConditionUnknown, time.Time{}
}

// CordonedFor returns shard and instance of the drain that a Node was cordoned for, and
// whether the operator has cordoned the Node.
func CordonedFor(node *corev1.Node) (shard, instance string, ok bool) {
	shard, instance, ok = strings.Cut(node.Annotations[v1beta1.AnnotationCordonedFor], "/")
	return shard, instance, ok && shard != "" && instance != ""
}
