// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// The indexes that the controller looks things up by, so that no sync ever walks
// a whole cache.
const (
	// byShard finds pools by a shard that they name.
	byShard = "shard"
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

	shardGroupIndexers = cache.Indexers{byProviderID: func(obj any) ([]string, error) {
		group, ok := obj.(*v1beta1.NstanceShardGroup)
		if !ok {
			return nil, nil
		}
		keys := make([]string, len(group.Status.ProviderIDs))
		for i, id := range group.Status.ProviderIDs {
			keys[i] = providerid.Key(id)
		}
		return keys, nil
	}}
)

// poolOf returns the name of the pool that owns a shard group, "" if none does.
func poolOf(group *v1beta1.NstanceShardGroup) string {
	if owner := controllers.PoolOwning(group); owner != nil {
		return owner.Name
	}
	return ""
}

// shardGroupsWith returns the shard groups that may have an instance with a provider
// id.
func (c *Controller) shardGroupsWith(id string) []*v1beta1.NstanceShardGroup {
	return controller.Indexed[v1beta1.NstanceShardGroup](c.shardGroupIndex, byProviderID, providerid.Key(id))
}
