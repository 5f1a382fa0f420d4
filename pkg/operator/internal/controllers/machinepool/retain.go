// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import "nstance.dev/operator/pkg/apis/infrastructure/v1beta1"

// deletionPolicy returns the policy for the shard groups of a pool. The default is left
// out, so that it costs no write.
func deletionPolicy(pool *v1beta1.NstanceMachinePool) v1beta1.DeletionPolicy {
	if pool.Spec.DeletionPolicy == v1beta1.DeletionRetain {
		return v1beta1.DeletionRetain
	}
	return ""
}

// retains reports whether a pool is being deleted and its groups stay on the shards. Its
// provider ids stay too: Cluster API deletes the Node of an id that is removed
// (docs/capi.md#provider-ids).
func retains(pool *v1beta1.NstanceMachinePool) bool {
	return !pool.DeletionTimestamp.IsZero() && deletionPolicy(pool) == v1beta1.DeletionRetain
}

// planPolicy deletes a shard group once it has a policy. The policy may have been changed
// just before the deletion, and a shard group is deleted by its own.
func planPolicy(observed observation, group *v1beta1.NstanceShardGroup, policy v1beta1.DeletionPolicy, d *decision) {
	switch {
	case group.Spec.DeletionPolicy == policy && group.DeletionTimestamp.IsZero():
		d.deleteShardGroups = append(d.deleteShardGroups, group)
	case group.Spec.DeletionPolicy != policy:
		state := stateOf(observed, group)
		want := wantedShardGroup{
			uid: string(group.UID), resourceVersion: group.ResourceVersion,
			spec: *group.Spec.DeepCopy(), kept: state.keptNote(),
		}
		want.spec.DeletionPolicy = policy
		d.apply = append(d.apply, want)
	}
}
