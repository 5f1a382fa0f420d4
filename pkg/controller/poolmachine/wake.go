// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
)

// ShardChanged is to be called when a shard was configured or removed, became
// synced, or when its connection came or went.
func (c *Controller) ShardChanged(shard string) {
	for _, pool := range c.pools() {
		if slices.Contains(pool.Spec.Shards, v1beta1.Identifier(shard)) {
			c.queue.AddAfter(cache.MetaObjectToName(pool), controller.BatchPeriod)
		}
	}
}

// GroupChanged is to be called when the cache of a shard's groups has changed. It
// wakes the pool of the group for instances that have never had a member; those
// that run now or are gone are not its business.
func (c *Controller) GroupChanged(shard, key string) {
	reported, _ := c.groups.Get(shard, key)
	for _, pool := range controller.Indexed[v1beta1.NstanceMachinePool](c.poolIndex, byGroup, groupKey(shard, key)) {
		if pool.Status.InfrastructureMachineKind != "" && c.memories.lacks(pool.UID, reported.Instances) {
			c.queue.AddAfter(cache.MetaObjectToName(pool), controller.BatchPeriod)
		}
	}
}

// poolChanged wakes a pool for what decides about its members. Provider ids and
// most of the status change with every instance, and are not among it.
func (c *Controller) poolChanged(before, after *v1beta1.NstanceMachinePool) {
	switch {
	case after == nil:
		c.memories.drop(before.UID)
	case before == nil || before.ResourceVersion == after.ResourceVersion ||
		before.UID != after.UID || leaving(before) != leaving(after) || controller.PauseChanged(before, after) ||
		before.Status.InfrastructureMachineKind != after.Status.InfrastructureMachineKind ||
		!slices.Equal(before.Spec.Shards, after.Spec.Shards):
		c.queue.Add(cache.MetaObjectToName(after))
	}
}

// shardGroupChanged wakes the pool of a shard group that came, or by which other
// instances were chosen to go.
func (c *Controller) shardGroupChanged(before, after *v1beta1.NstanceShardGroup) {
	if after == nil || before != nil && slices.Equal(before.Spec.RemoveFirst, after.Spec.RemoveFirst) {
		return
	}
	if owner := poolOwning(after); owner != nil {
		c.queue.Add(c.key(owner.Name))
	}
}

// memberChanged remembers the members there are, and wakes the pool of one that
// came or went. One that went is forgotten, unless its shard still lists the
// instance, for which it would be made again.
func (c *Controller) memberChanged(before, after *v1beta1.NstanceMachine) {
	member := after
	if after == nil {
		member = before
	}
	pool := controller.PoolOf(member)
	if pool == nil || before != nil && after != nil && before.UID == after.UID {
		return
	}
	shard := string(member.Spec.Shard)
	if after != nil || c.ids(shard, string(member.Spec.GroupRef.Name)).Has(member.Name) {
		c.memories.remember(pool.UID, member.Name, shard)
	} else {
		c.memories.forget(pool.UID, func(id, _ string) bool { return id == member.Name })
	}
	c.queue.AddAfter(c.key(pool.Name), controller.BatchPeriod)
}

// machineChanged wakes the pool of a Machine that came or went, in which case it may
// be without its NstanceMachine, or the other way round, and of one that has become
// unhealthy or may be replaced now that it is not paused.
func (c *Controller) machineChanged(before, after *clusterv1.Machine) {
	if before != nil && after != nil && before.UID == after.UID && poolName(before) == poolName(after) &&
		unhealthy(before) == unhealthy(after) && !controller.PauseChanged(before, after) {
		return
	}
	if after == nil {
		after = before
	}
	name := poolName(after)
	if name == "" {
		return
	}
	for _, machinePool := range controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, byPoolName, name) {
		if pool := capi.PoolOf(machinePool); pool != "" {
			c.queue.AddAfter(c.key(pool), controller.BatchPeriod)
		}
	}
	if member, err := c.memberLister.Get(after.Spec.InfrastructureRef.Name); err == nil && controller.PoolOf(member) != nil {
		c.queue.AddAfter(c.key(controller.PoolOf(member).Name), controller.BatchPeriod)
	}
}

// machinePoolChanged wakes the pool that a MachinePool refers to when it comes,
// goes or is paused.
func (c *Controller) machinePoolChanged(before, after *clusterv1.MachinePool) {
	if before != nil && after != nil && before.UID == after.UID && leaving(before) == leaving(after) &&
		!controller.PauseChanged(before, after) && capi.PoolOf(before) == capi.PoolOf(after) {
		return
	}
	for _, machinePool := range []*clusterv1.MachinePool{before, after} {
		if machinePool == nil {
			continue
		}
		if pool := capi.PoolOf(machinePool); pool != "" {
			c.queue.Add(c.key(pool))
		}
	}
}

// clusterChanged wakes every pool when the Cluster is paused or goes on.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	if clusterPaused(before) == clusterPaused(after) {
		return
	}
	for _, pool := range c.pools() {
		c.queue.Add(cache.MetaObjectToName(pool))
	}
}

func clusterPaused(cluster *clusterv1.Cluster) bool {
	return cluster != nil && controller.PausedBy(cluster) != ""
}

func (c *Controller) pools() []*v1beta1.NstanceMachinePool {
	pools, err := c.poolLister.List(labels.Everything())
	if err != nil {
		// A lister of a cache gives no errors.
		panic(err)
	}
	return pools
}
