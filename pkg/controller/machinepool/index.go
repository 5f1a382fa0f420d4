// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/providerid"
)

// The indexes that the controller looks things up by, so that no sync ever walks
// a whole cache.
const (
	// byShard finds pools by a shard that they name.
	byShard = "shard"
	// byPool finds shard groups by the pool that owns them.
	byPool = "pool"
	// byPoolUID finds nstanceMachines by the uid of their pool.
	byPoolUID = "poolUID"
	// byProviderID finds shard groups by the keys of their provider ids.
	byProviderID = "providerID"
)

var (
	poolIndexers = cache.Indexers{byShard: func(obj any) ([]string, error) {
		pool, ok := obj.(*v1beta1.NstanceMachinePool)
		if !ok {
			return nil, nil
		}
		shards := make([]string, len(pool.Spec.Shards))
		for i, shard := range pool.Spec.Shards {
			shards[i] = string(shard)
		}
		return shards, nil
	}}

	nstanceMachineIndexers = cache.Indexers{byPoolUID: controller.PoolUIDOf}

	shardGroupIndexers = cache.Indexers{
		byPool: func(obj any) ([]string, error) {
			if group, ok := obj.(*v1beta1.NstanceShardGroup); ok {
				return present(poolOf(group)), nil
			}
			return nil, nil
		},
		byProviderID: func(obj any) ([]string, error) {
			group, ok := obj.(*v1beta1.NstanceShardGroup)
			if !ok {
				return nil, nil
			}
			keys := make([]string, len(group.Status.ProviderIDs))
			for i, id := range group.Status.ProviderIDs {
				keys[i] = providerid.Key(id)
			}
			return keys, nil
		},
	}
)

// poolOf returns the name of the pool that owns a shard group, "" if none does.
func poolOf(group *v1beta1.NstanceShardGroup) string {
	owner := metav1.GetControllerOfNoCopy(group)
	if owner == nil || owner.Kind != v1beta1.PoolKind {
		return ""
	}
	return owner.Name
}

// shardGroupsOf returns the shard groups of a pool, sorted by name. Those of a former
// pool of the same name are not included.
func (c *Controller) shardGroupsOf(pool *v1beta1.NstanceMachinePool) []*v1beta1.NstanceShardGroup {
	groups := slices.DeleteFunc(controller.Indexed[v1beta1.NstanceShardGroup](c.shardGroupIndex, byPool, pool.Name),
		func(group *v1beta1.NstanceShardGroup) bool { return !metav1.IsControlledBy(group, pool) })
	slices.SortFunc(groups, func(a, b *v1beta1.NstanceShardGroup) int { return strings.Compare(a.Name, b.Name) })
	return groups
}

// nstanceMachinesOf returns the nstanceMachines of a pool, sorted by name.
func (c *Controller) nstanceMachinesOf(pool *v1beta1.NstanceMachinePool) []*v1beta1.NstanceMachine {
	found := controller.Indexed[v1beta1.NstanceMachine](c.nstanceMachineIndex, byPoolUID, string(pool.UID))
	slices.SortFunc(found, func(a, b *v1beta1.NstanceMachine) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// shardGroupsWith returns the shard groups that may have an instance with a provider
// id.
func (c *Controller) shardGroupsWith(id string) []*v1beta1.NstanceShardGroup {
	return controller.Indexed[v1beta1.NstanceShardGroup](c.shardGroupIndex, byProviderID, providerid.Key(id))
}

func present(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}
