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

// machinesMode is whether the instances of a pool have Machines after this sync, and
// why. An empty status leaves the condition as it is.
type machinesMode struct {
	on     bool
	status metav1.ConditionStatus
	problem
}

// planMachines decides whether the instances of a pool have Machines. They are enabled
// once the servers of all shards list their instances and remove the ones that a
// scale-down selects. Once enabled, they stay until the user disables them, because the
// existing Machines depend on that.
func planMachines(observed observation) machinesMode {
	mode := machinesMode{on: hasMachines(observed)}
	if len(observed.machinePools) != 1 {
		return mode
	}
	if reason := disabledBecause(observed.pool, observed.machinePools[0]); reason != "" {
		return machinesMode{false, metav1.ConditionFalse, problem{v1beta1.ReasonMachinesDisabled, reason}}
	}
	var unsupported, unknown []string
	for _, shard := range observed.shards {
		switch {
		case !shard.synced || shard.reported == nil:
			unknown = append(unknown, shard.id)
		case !shard.reported.ListsInstances:
			unsupported = append(unsupported, shard.id)
		}
	}
	switch {
	case len(unsupported) > 0:
		mode.status = metav1.ConditionFalse
		mode.problem = problem{v1beta1.ReasonUnsupportedByServer,
			fmt.Sprintf("the servers of these shards do not list their instances: %s", strings.Join(unsupported, ", "))}
	case len(unknown) > 0 && !mode.on:
		mode.status = metav1.ConditionFalse
		mode.problem = problem{v1beta1.ReasonNotSynced,
			fmt.Sprintf("it is not known yet what the servers of these shards can do: %s", strings.Join(unknown, ", "))}
	case len(unknown) == 0:
		mode.on, mode.status = true, metav1.ConditionTrue
		mode.problem = problem{reason: v1beta1.ReasonMachinesEnabled}
	}
	return mode
}

// hasMachines reports whether an earlier sync enabled Machines. A backup may restore
// the pool without its status; then its NstanceMachines show it.
func hasMachines(observed observation) bool {
	if observed.pool.Status.InfrastructureMachineKind != "" {
		return true
	}
	return len(observed.nstanceMachines) > 0 && len(observed.machinePools) == 1 &&
		disabledBecause(observed.pool, observed.machinePools[0]) == ""
}

// disabledBecause returns why a pool should have no Machines, "" if it should.
func disabledBecause(pool *v1beta1.NstanceMachinePool, machinePool *clusterv1.MachinePool) string {
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

// autoscaled reports whether the cluster autoscaler scales a MachinePool.
func autoscaled(machinePool *clusterv1.MachinePool) bool {
	_, least := machinePool.Annotations[clusterv1.AutoscalerMinSizeAnnotation]
	_, most := machinePool.Annotations[clusterv1.AutoscalerMaxSizeAnnotation]
	return least && most
}
