// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"cmp"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// machinesMode is whether the instances of a pool have Machines from now on, and
// why. No status of the condition leaves it as it is.
type machinesMode struct {
	on     bool
	status metav1.ConditionStatus
	trouble
}

// planMachines decides whether the instances of a pool have Machines. They need a
// server that lists its instances and deletes those that were chosen, on every
// shard, before they begin. Once they have begun, only who asked for them ends
// them: Cluster API would take Machines that nobody renews for its own.
func planMachines(seen observation) machinesMode {
	mode := machinesMode{on: hasMachines(seen.pool)}
	if len(seen.machinePools) != 1 {
		return mode
	}
	if no := unwanted(seen.pool, seen.machinePools[0]); no != "" {
		return machinesMode{false, metav1.ConditionFalse, trouble{v1beta1.ReasonMachinesDisabled, no}}
	}
	var unable, unknown []string
	for _, shard := range seen.shards {
		switch {
		case !shard.synced || shard.reported == nil:
			unknown = append(unknown, shard.id)
		case !shard.reported.ListsInstances:
			unable = append(unable, shard.id)
		}
	}
	switch {
	case len(unable) > 0:
		mode.status = metav1.ConditionFalse
		mode.trouble = trouble{v1beta1.ReasonUnsupportedByServer,
			fmt.Sprintf("the servers of these shards do not list their instances: %s", strings.Join(unable, ", "))}
	case len(unknown) > 0 && !mode.on:
		mode.status = metav1.ConditionFalse
		mode.trouble = trouble{v1beta1.ReasonNotSynced,
			fmt.Sprintf("it is not known yet what the servers of these shards can do: %s", strings.Join(unknown, ", "))}
	case len(unknown) == 0:
		mode.on, mode.status = true, metav1.ConditionTrue
		mode.trouble = trouble{reason: v1beta1.ReasonMachinesEnabled}
	}
	return mode
}

// hasMachines tells whether the instances of a pool have Machines since an
// earlier sync.
func hasMachines(pool *v1beta1.NstanceMachinePool) bool {
	return pool.Status.InfrastructureMachineKind != ""
}

// unwanted is why a pool is not to have Machines, "" when it is.
func unwanted(pool *v1beta1.NstanceMachinePool, machinePool *clusterv1.MachinePool) string {
	switch mode := cmp.Or(pool.Spec.Machines, v1beta1.MachinesAuto); {
	case mode == v1beta1.MachinesAlways, mode == v1beta1.MachinesAuto && autoscaled(machinePool):
		return ""
	case mode == v1beta1.MachinesAuto:
		return fmt.Sprintf("spec.machines is Auto, and MachinePool %q does not have both annotations %s and %s",
			machinePool.Name, clusterv1.AutoscalerMinSizeAnnotation, clusterv1.AutoscalerMaxSizeAnnotation)
	default:
		return fmt.Sprintf("spec.machines is %s", mode)
	}
}

// autoscaled tells whether the cluster autoscaler is told to scale a MachinePool
// (CAPI contract).
func autoscaled(machinePool *clusterv1.MachinePool) bool {
	_, least := machinePool.Annotations[clusterv1.AutoscalerMinSizeAnnotation]
	_, most := machinePool.Annotations[clusterv1.AutoscalerMaxSizeAnnotation]
	return least && most
}
