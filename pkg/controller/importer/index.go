// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"slices"
	"strings"

	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
)

// byGroup finds pools by their group. Other controllers index the same cache under
// other names.
const byGroup = "group"

var poolIndexers = cache.Indexers{byGroup: func(obj any) ([]string, error) {
	if pool, ok := obj.(*v1beta1.NstanceMachinePool); ok {
		return []string{string(pool.Spec.Group)}, nil
	}
	return nil, nil
}}

// takesAlong is the name of the pool that Cluster API deletes with a MachinePool
// that is being deleted, whoever made it and when (CAPI contract). "" when there
// is none.
func takesAlong(machinePool *clusterv1.MachinePool) string {
	if machinePool.DeletionTimestamp.IsZero() {
		return ""
	}
	return capi.PoolOf(machinePool)
}

// poolsOf are the pools of a group, by name. There should be at most one.
func (c *Controller) poolsOf(group string) []*v1beta1.NstanceMachinePool {
	pools := controller.Indexed[v1beta1.NstanceMachinePool](c.poolIndex, byGroup, group)
	slices.SortFunc(pools, func(a, b *v1beta1.NstanceMachinePool) int { return strings.Compare(a.Name, b.Name) })
	return pools
}

// takenAlong tells whether a pool of that name would go with a MachinePool.
func (c *Controller) takenAlong(pool string) bool {
	return slices.ContainsFunc(controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, capi.ByPool, pool),
		func(machinePool *clusterv1.MachinePool) bool { return takesAlong(machinePool) != "" })
}
