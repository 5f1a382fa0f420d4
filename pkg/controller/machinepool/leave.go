// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"k8s.io/apimachinery/pkg/api/meta"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// planLeaving has a shard group of a pool that is being deleted go when none of its
// instances has an NstanceMachine any more. Until then Cluster API drains their
// Machines (CAPI contract), and each that is done makes the shard smaller, or it
// would get a replacement.
func planLeaving(seen observation, group *v1beta1.NstanceShardGroup, d *decision) {
	members := membersOn(seen.members, group)
	if len(members) == 0 {
		d.remove = append(d.remove, group)
		return
	}
	shard := shardState{group: group}
	for _, state := range seen.shards {
		if state.group != nil && state.group.UID == group.UID {
			shard = state
		}
	}
	size, drained := group.Spec.Size, []string(nil)
	for _, member := range members {
		if size > 0 && !member.DeletionTimestamp.IsZero() && !shard.chosen(member.Name) && !shard.ended(member.Name) &&
			!meta.IsStatusConditionTrue(member.Status.Conditions, v1beta1.ConditionServerDeleted) {
			size--
			drained = append(drained, member.Name)
		}
	}
	if len(drained) == 0 {
		return
	}
	want := shardGroupSpec{uid: string(group.UID), spec: *group.Spec.DeepCopy(), kept: shard.note()}
	want.spec.Size, want.spec.RemoveFirst = size, shard.removeFirst(size, drained)
	d.apply = append(d.apply, want)
}

// membersOn are those of a shard group's instances.
func membersOn(members []*v1beta1.NstanceMachine, group *v1beta1.NstanceShardGroup) []*v1beta1.NstanceMachine {
	var on []*v1beta1.NstanceMachine
	for _, member := range members {
		if member.Spec.Shard == group.Spec.Shard {
			on = append(on, member)
		}
	}
	return on
}
