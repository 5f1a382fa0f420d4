// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/drains"
	"nstance.dev/operator/pkg/plugin/objects"
)

// Build returns the status of the pools in a snapshot.
func Build(s *objects.Snapshot) Status {
	status := Status{
		APIVersion: objects.APIVersion, Kind: Kind, Pools: []Pool{}, OnDemand: []Machine{},
		Drains: []drains.Drain{}, Unknown: s.Unknown(), OnDemandUnknown: s.NstanceMachines.Unknown,
		// Without shard groups it is not known which Nodes are those of the pools.
		DrainsUnknown: cmp.Or(s.Nodes.Unknown, s.ShardGroups.Unknown),
	}
	for _, drain := range drains.Find(s) {
		if drain.InProgress() {
			status.Drains = append(status.Drains, drain)
		}
	}
	b := builder{Snapshot: s, nodes: s.IndexNodes(), drains: status.Drains}
	for i := range s.Pools.Items {
		status.Pools = append(status.Pools, b.pool(&s.Pools.Items[i]))
	}
	slices.SortFunc(status.Pools, func(x, y Pool) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	status.OnDemand = append(status.OnDemand, b.onDemand()...)
	return status
}

// builder has what all pools need.
type builder struct {
	*objects.Snapshot
	nodes  objects.Nodes
	drains []drains.Drain
}

func (b *builder) pool(pool *v1beta1.NstanceMachinePool) Pool {
	result := Pool{
		Namespace: pool.Namespace, Name: pool.Name, Group: string(pool.Spec.Group), Created: pool.CreationTimestamp.Time,
		Size: pool.Status.DesiredReplicas, Actual: pool.Status.Replicas, Draining: pool.Status.Draining,
		Problems: problems(pool.Status.Conditions), Shards: []Shard{},
		ReplicasUnknown: b.MachinePools.Unknown, ShardsUnknown: b.ShardGroups.Unknown,
	}
	if machinePool := b.MachinePoolOf(pool); machinePool != nil {
		result.Replicas = machinePool.Spec.Replicas
	}
	members := b.MembersOf(pool)
	var ready int32
	known := b.ShardGroups.Unknown == "" && b.Nodes.Unknown == ""
	for _, group := range b.ShardGroupsOf(pool) {
		shard := b.shard(group, onShard(members, string(group.Spec.Shard)))
		result.Shards = append(result.Shards, shard)
		if shard.ReadyNodes != nil {
			ready += *shard.ReadyNodes
		}
	}
	if known {
		result.ReadyNodes = &ready
	}
	return result
}

// onShard returns the NstanceMachines on a shard.
func onShard(members []*v1beta1.NstanceMachine, shard string) []*v1beta1.NstanceMachine {
	return slices.DeleteFunc(slices.Clone(members), func(member *v1beta1.NstanceMachine) bool {
		return cmp.Or(member.Status.Shard, string(member.Spec.Shard), member.Labels[v1beta1.LabelShard]) != shard
	})
}

func (b *builder) shard(group *v1beta1.NstanceShardGroup, members []*v1beta1.NstanceMachine) Shard {
	shard := Shard{
		Name: string(group.Spec.Shard), ShardGroup: group.Name, Created: group.CreationTimestamp.Time,
		Size: group.Spec.Size, Actual: group.Status.Replicas, Draining: group.Status.Draining,
		Problems: problems(group.Status.Conditions), Lent: group.Annotations[v1beta1.AnnotationLent],
		Reachable: string(metav1.ConditionUnknown), Instances: b.instances(group, members),
	}
	if reachable := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionShardReachable); reachable != nil {
		shard.Reachable, shard.ReachableSince = string(reachable.Status), reachable.LastTransitionTime.Time
	}
	var ready, drained int32
	for _, instance := range shard.Instances {
		if instance.Node == nil {
			continue
		}
		if instance.Node.Ready == string(metav1.ConditionTrue) {
			ready++
		}
		if b.drainOf(instance.Node.Name) != nil {
			drained++
		}
	}
	if b.Nodes.Unknown != "" {
		return shard
	}
	shard.ReadyNodes = &ready
	if shard.Draining != nil {
		shard.UnidentifiedDrains = max(*shard.Draining-drained, 0)
	}
	return shard
}

// drainOf returns the drain of a Node, nil if there is none.
func (b *builder) drainOf(node string) *drains.Drain {
	at, found := slices.BinarySearchFunc(b.drains, node, func(d drains.Drain, name string) int { return cmp.Compare(d.Node, name) })
	if !found {
		return nil
	}
	return &b.drains[at]
}
