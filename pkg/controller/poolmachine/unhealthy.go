// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/controller"
)

// unhealthy tells whether a MachineHealthCheck has found that a Machine is to be
// replaced. It leaves that to the owner of the Machine (CAPI contract), and a
// MachinePool, which is the owner, does nothing about it.
func unhealthy(machine *clusterv1.Machine) bool {
	return meta.IsStatusConditionFalse(machine.Status.Conditions, clusterv1.MachineHealthCheckSucceededCondition) &&
		meta.IsStatusConditionFalse(machine.Status.Conditions, clusterv1.MachineOwnerRemediatedCondition)
}

// replaceable tells whether an unhealthy Machine may be deleted, so that its shard
// makes another instance.
func replaceable(machine *clusterv1.Machine) bool {
	return unhealthy(machine) && !leaving(machine) && controller.PausedBy(nil, machine) == ""
}
