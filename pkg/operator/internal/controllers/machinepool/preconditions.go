// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
)

// problem is the reason and the message of a condition.
type problem struct{ reason, message string }

// checkPreconditions returns why the replicas cannot be spread, nil if they can.
func checkPreconditions(observed observation) *problem {
	var unknown, unread []string
	for _, shard := range observed.shards {
		switch {
		case !shard.configured && (shard.group == nil || len(observed.machinePools) == 0):
			// The number of its instances was never known.
			unknown = append(unknown, shard.id)
		case shard.configured && !shard.synced:
			unread = append(unread, shard.id)
		}
		if shard.group != nil && !metav1.IsControlledBy(shard.group, observed.pool) {
			return &problem{v1beta1.ReasonGroupInUse,
				fmt.Sprintf("shard group %q belongs to another pool", shard.group.Name)}
		}
	}
	switch {
	case len(unknown) > 0:
		return &problem{v1beta1.ReasonUnknownShard,
			fmt.Sprintf("spec.shards names shards that are not configured: %s", strings.Join(unknown, ", "))}
	case len(observed.machinePools) > 1:
		return &problem{v1beta1.ReasonMachinePoolConflict,
			fmt.Sprintf("%d MachinePools refer to this pool: %s", len(observed.machinePools), names(observed.machinePools))}
	case len(observed.machinePools) == 1 && !observed.machinePools[0].DeletionTimestamp.IsZero():
		return &problem{v1beta1.ReasonDeleting,
			fmt.Sprintf("MachinePool %q is being deleted", observed.machinePools[0].Name)}
	case len(observed.machinePools) == 0 && observed.clusterDeleting:
		return &problem{v1beta1.ReasonNoMachinePool, "no MachinePool is created while the Cluster is being deleted"}
	case len(observed.machinePools) == 1 && observed.machinePools[0].Spec.Replicas == nil:
		return &problem{v1beta1.ReasonNoMachinePool,
			fmt.Sprintf("MachinePool %q has no spec.replicas", observed.machinePools[0].Name)}
	case len(observed.machinePools) == 1 && *observed.machinePools[0].Spec.Replicas > v1beta1.MaxReplicas:
		return &problem{v1beta1.ReasonTooManyReplicas,
			fmt.Sprintf("MachinePool %q has %d replicas, and a pool has at most %d; the sizes stay",
				observed.machinePools[0].Name, *observed.machinePools[0].Spec.Replicas, v1beta1.MaxReplicas)}
	case len(observed.machinePools) == 0 && observed.nameTaken:
		return &problem{v1beta1.ReasonMachinePoolConflict,
			fmt.Sprintf("MachinePool %q refers to another infrastructure object", observed.pool.Name)}
	case len(observed.machinePools) == 0 && len(unread) > 0:
		return &problem{v1beta1.ReasonNotSynced,
			fmt.Sprintf("no MachinePool is created before every shard was read; missing: %s", strings.Join(unread, ", "))}
	case len(observed.machinePools) == 1 && len(unread) > 0 && !replicasExplicit(observed, observed.machinePools[0]):
		return &problem{v1beta1.ReasonNotSynced,
			fmt.Sprintf("the replicas of MachinePool %q are a default, and not every shard was read; missing: %s",
				observed.machinePools[0].Name, strings.Join(unread, ", "))}
	}
	return nil
}

// replicasExplicit reports whether a client has set the replicas. If none does, the
// webhook of Cluster API sets a default when the MachinePool is created, and fields
// that a webhook sets have no manager. So before the pool is spread for the first
// time, only replicas with a manager count. Afterwards all do: those that the scale
// subresource sets have no manager either, and the admission webhook rejects the
// removal of replicas. They also count if the API server records no managers at all.
func replicasExplicit(observed observation, machinePool *clusterv1.MachinePool) bool {
	return len(observed.shardGroups) > 0 || len(machinePool.ManagedFields) == 0 || capi.ReplicasOwned(machinePool)
}

func names(machinePools []*clusterv1.MachinePool) string {
	list := make([]string, len(machinePools))
	for i, machinePool := range machinePools {
		list[i] = machinePool.Name
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
