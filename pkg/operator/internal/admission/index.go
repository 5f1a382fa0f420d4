// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
)

// machinePoolsOf returns the MachinePools that refer to a pool.
func (v *Validator) machinePoolsOf(pool string) []*clusterv1.MachinePool {
	return controller.Indexed[clusterv1.MachinePool](v.machinePoolIndex, capi.ByPool, pool)
}
