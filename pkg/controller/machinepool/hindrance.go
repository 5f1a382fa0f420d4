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
)

// hindrance is why the pool's replicas cannot be spread, nil when they can.
func hindrance(seen observation) *trouble {
	var unknown, unread []string
	for _, shard := range seen.shards {
		switch {
		case !shard.configured:
			unknown = append(unknown, shard.id)
		case !shard.synced:
			unread = append(unread, shard.id)
		}
		if shard.group != nil && !metav1.IsControlledBy(shard.group, seen.pool) {
			return &trouble{v1beta1.ReasonGroupInUse,
				fmt.Sprintf("shard group %q belongs to another pool", shard.group.Name)}
		}
	}
	switch {
	case len(unknown) > 0:
		return &trouble{v1beta1.ReasonUnknownShard,
			fmt.Sprintf("spec.shards names shards that are not configured: %s", strings.Join(unknown, ", "))}
	case len(seen.machinePools) > 1:
		return &trouble{v1beta1.ReasonMachinePoolConflict,
			fmt.Sprintf("%d MachinePools refer to this pool: %s", len(seen.machinePools), names(seen.machinePools))}
	case len(seen.machinePools) == 1 && !seen.machinePools[0].DeletionTimestamp.IsZero():
		return &trouble{v1beta1.ReasonDeleting,
			fmt.Sprintf("MachinePool %q is being deleted", seen.machinePools[0].Name)}
	case len(seen.machinePools) == 0 && seen.clusterGoes:
		return &trouble{v1beta1.ReasonNoMachinePool, "no MachinePool is made while the Cluster is being deleted"}
	case len(seen.machinePools) == 1 && seen.machinePools[0].Spec.Replicas == nil:
		return &trouble{v1beta1.ReasonNoMachinePool,
			fmt.Sprintf("MachinePool %q has no spec.replicas", seen.machinePools[0].Name)}
	case len(seen.machinePools) == 0 && seen.namesake:
		return &trouble{v1beta1.ReasonMachinePoolConflict,
			fmt.Sprintf("MachinePool %q refers to another infrastructure object", seen.pool.Name)}
	case len(seen.machinePools) == 0 && len(unread) > 0:
		return &trouble{v1beta1.ReasonNotSynced,
			fmt.Sprintf("no MachinePool is made before every shard was read; missing: %s", strings.Join(unread, ", "))}
	case len(seen.machinePools) == 1 && len(unread) > 0 && !asked(seen, seen.machinePools[0]):
		return &trouble{v1beta1.ReasonNotSynced,
			fmt.Sprintf("nobody asked for the replicas of MachinePool %q, and not every shard was read; missing: %s",
				seen.machinePools[0].Name, strings.Join(unread, ", "))}
	}
	return nil
}

func names(machinePools []*clusterv1.MachinePool) string {
	list := make([]string, len(machinePools))
	for i, machinePool := range machinePools {
		list[i] = machinePool.Name
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
