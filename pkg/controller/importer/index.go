// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"slices"
	"strings"

	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// poolKind is the kind that MachinePools refer to.
const poolKind = "NstanceMachinePool"

// The indexes that the controller looks things up by. Other controllers index
// the same caches under other names.
const (
	// byGroup finds pools by their group.
	byGroup = "group"
	// byTakenAlong finds MachinePools by the pool that goes with them.
	byTakenAlong = "takenAlong"
)

var (
	poolIndexers = cache.Indexers{byGroup: func(obj any) ([]string, error) {
		if pool, ok := obj.(*v1beta1.NstanceMachinePool); ok {
			return []string{string(pool.Spec.Group)}, nil
		}
		return nil, nil
	}}

	machinePoolIndexers = cache.Indexers{byTakenAlong: func(obj any) ([]string, error) {
		if machinePool, ok := obj.(*clusterv1.MachinePool); ok {
			if pool := takesAlong(machinePool); pool != "" {
				return []string{pool}, nil
			}
		}
		return nil, nil
	}}
)

// takesAlong is the name of the pool that Cluster API deletes with a MachinePool
// that is being deleted, whoever made it and when (CAPI contract). "" when there
// is none.
func takesAlong(machinePool *clusterv1.MachinePool) string {
	ref := machinePool.Spec.Template.Spec.InfrastructureRef
	if machinePool.DeletionTimestamp.IsZero() || ref.Kind != poolKind || ref.APIGroup != v1beta1.GroupName {
		return ""
	}
	return ref.Name
}

// poolsOf are the pools of a group, by name. There should be at most one.
func (c *Controller) poolsOf(group string) []*v1beta1.NstanceMachinePool {
	var pools []*v1beta1.NstanceMachinePool
	for _, obj := range lookup(c.poolIndex, byGroup, group) {
		if pool, ok := obj.(*v1beta1.NstanceMachinePool); ok {
			pools = append(pools, pool)
		}
	}
	slices.SortFunc(pools, func(a, b *v1beta1.NstanceMachinePool) int { return strings.Compare(a.Name, b.Name) })
	return pools
}

// takenAlong tells whether a pool of that name would go with a MachinePool.
func (c *Controller) takenAlong(pool string) bool {
	return len(lookup(c.machinePoolIndex, byTakenAlong, pool)) > 0
}

func lookup(indexer cache.Indexer, index, value string) []any {
	found, err := indexer.ByIndex(index, value)
	if err != nil {
		// Only an index that was never added gives an error.
		panic(err)
	}
	return found
}
