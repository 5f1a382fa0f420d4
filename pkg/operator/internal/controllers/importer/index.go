// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"slices"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
)

// deletedPoolOf returns the name of the pool that Cluster API deletes together with
// a MachinePool that is being deleted, "" when there is none
// (docs/capi.md#deletion).
func deletedPoolOf(machinePool *clusterv1.MachinePool) string {
	if machinePool.DeletionTimestamp.IsZero() {
		return ""
	}
	return capi.PoolOf(machinePool)
}

// poolsOf returns the pools of a group, sorted by name.
func (c *Controller) poolsOf(group string) []*v1beta1.NstanceMachinePool {
	pools := c.poolIndex.OfGroup(group)
	slices.SortFunc(pools, func(a, b *v1beta1.NstanceMachinePool) int { return strings.Compare(a.Name, b.Name) })
	return pools
}

// hasDeletedMachinePool reports whether a MachinePool that is being deleted refers to
// the pool of that name.
func (c *Controller) hasDeletedMachinePool(pool string) bool {
	return slices.ContainsFunc(controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, capi.ByPool, pool),
		func(machinePool *clusterv1.MachinePool) bool { return deletedPoolOf(machinePool) != "" })
}
