// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/base/capi"
)

// byPoolName finds Machines by the label that names their MachinePool, and MachinePools
// by what that label is for them. Other controllers index the same caches under other
// names.
const byPoolName = "poolmember.poolName"

var (
	machineIndexers = cache.Indexers{byPoolName: func(obj any) ([]string, error) {
		if machine, ok := obj.(*clusterv1.Machine); ok {
			if name := poolName(machine); name != "" {
				return []string{name}, nil
			}
		}
		return nil, nil
	}}

	machinePoolIndexers = cache.Indexers{byPoolName: func(obj any) ([]string, error) {
		if machinePool, ok := obj.(*clusterv1.MachinePool); ok {
			return []string{capi.LabelValue(machinePool.Name)}, nil
		}
		return nil, nil
	}}
)

// poolName returns the label that names the MachinePool of a Machine whose
// infrastructure is ours, "" for any other Machine.
func poolName(machine *clusterv1.Machine) string {
	if capi.NstanceMachineOf(machine) == "" {
		return ""
	}
	return machine.Labels[clusterv1.MachinePoolNameLabel]
}
