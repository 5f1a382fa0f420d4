// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// unhealthy reports whether a MachineHealthCheck requests that a Machine is replaced.
// It leaves the replacement to the owner of the Machine, and the MachinePool, which is
// the owner, does not replace it (docs/capi.md#machines).
func unhealthy(machine *clusterv1.Machine) bool {
	return meta.IsStatusConditionFalse(machine.Status.Conditions, clusterv1.MachineHealthCheckSucceededCondition) &&
		meta.IsStatusConditionFalse(machine.Status.Conditions, clusterv1.MachineOwnerRemediatedCondition)
}

// replaceable reports whether an unhealthy Machine may be deleted, so that its shard
// replaces the instance.
func replaceable(machine *clusterv1.Machine) bool {
	return unhealthy(machine) && !deleting(machine) && controllers.PausedBy(nil, machine) == ""
}
