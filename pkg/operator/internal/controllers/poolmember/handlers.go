// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// shardChanged enqueues the pools of a shard that was configured or removed, became
// synced, or whose connection changed.
func (c *Controller) shardChanged(shard string) {
	for _, pool := range c.pools() {
		if slices.Contains(pool.Spec.Shards, v1beta1.Identifier(shard)) {
			c.queue.AddAfter(cache.MetaObjectToName(pool), controller.BatchPeriod)
		}
	}
}

// groupChanged enqueues the pools of a cached group with instances that never had an
// nstanceMachine. Other changes of instances do not matter.
func (c *Controller) groupChanged(shard, key string) {
	reported, _ := c.groups.Get(shard, key)
	for _, pool := range c.poolIndex.OfGroup(key) {
		if !slices.Contains(pool.Spec.Shards, v1beta1.Identifier(shard)) {
			continue
		}
		if pool.Status.InfrastructureMachineKind != "" && c.states.anyNew(pool.UID, reported.Instances) {
			c.queue.AddAfter(cache.MetaObjectToName(pool), controller.BatchPeriod)
		}
	}
}

// poolChanged enqueues a pool after a change that decides about its nstanceMachines.
// Provider ids and most of the status change with every instance and do not matter.
func (c *Controller) poolChanged(before, after *v1beta1.NstanceMachinePool) {
	switch {
	case after == nil:
		c.states.drop(before.UID)
	case before == nil || before.ResourceVersion == after.ResourceVersion ||
		before.UID != after.UID || deleting(before) != deleting(after) || controllers.PauseChanged(before, after) ||
		before.Status.InfrastructureMachineKind != after.Status.InfrastructureMachineKind ||
		!slices.Equal(before.Spec.Shards, after.Spec.Shards):
		c.queue.Add(cache.MetaObjectToName(after))
	}
}

// shardGroupChanged enqueues the pool of a new shard group, or of one with other
// selected instances.
func (c *Controller) shardGroupChanged(before, after *v1beta1.NstanceShardGroup) {
	if after == nil || before != nil && slices.Equal(before.Spec.RemoveFirst, after.Spec.RemoveFirst) {
		return
	}
	if owner := controllers.PoolOwning(after); owner != nil {
		c.queue.Add(c.key(owner.Name))
	}
}

// nstanceMachineChanged records the nstanceMachines that exist, and enqueues the pool of
// one that was created or deleted. A deleted one is dropped, unless its shard still
// lists the instance, for which it would be created again.
func (c *Controller) nstanceMachineChanged(before, after *v1beta1.NstanceMachine) {
	nstanceMachine := after
	if after == nil {
		nstanceMachine = before
	}
	pool := controllers.PoolOf(nstanceMachine)
	if pool == nil || before != nil && after != nil && before.UID == after.UID {
		return
	}
	shard := string(nstanceMachine.Spec.Shard)
	if after != nil || c.ids(shard, string(nstanceMachine.Spec.GroupRef.Name)).Has(nstanceMachine.Name) {
		c.states.addInstance(pool.UID, nstanceMachine.Name, shard)
	} else {
		c.states.dropInstances(pool.UID, func(id, _ string) bool { return id == nstanceMachine.Name })
	}
	c.queue.AddAfter(c.key(pool.Name), controller.BatchPeriod)
}

// machineChanged enqueues the pool of a Machine that was created or deleted, because
// only one of Machine and nstanceMachine may exist, and of one that became unhealthy, or
// was unpaused and may be replaced now.
func (c *Controller) machineChanged(before, after *clusterv1.Machine) {
	if before != nil && after != nil && before.UID == after.UID && poolName(before) == poolName(after) &&
		unhealthy(before) == unhealthy(after) && !controllers.PauseChanged(before, after) {
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
	if nstanceMachine, err := c.nstanceMachineLister.Get(after.Spec.InfrastructureRef.Name); err == nil && controllers.PoolOf(nstanceMachine) != nil {
		c.queue.AddAfter(c.key(controllers.PoolOf(nstanceMachine).Name), controller.BatchPeriod)
	}
}

// machinePoolChanged enqueues the pool that a MachinePool refers to when the MachinePool
// is created, paused, unpaused or deleted.
func (c *Controller) machinePoolChanged(before, after *clusterv1.MachinePool) {
	if before != nil && after != nil && before.UID == after.UID && deleting(before) == deleting(after) &&
		!controllers.PauseChanged(before, after) && capi.PoolOf(before) == capi.PoolOf(after) {
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

// clusterChanged enqueues every pool when the Cluster is paused or unpaused.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	if clusterPaused(before) == clusterPaused(after) {
		return
	}
	for _, pool := range c.pools() {
		c.queue.Add(cache.MetaObjectToName(pool))
	}
}

func clusterPaused(cluster *clusterv1.Cluster) bool {
	return cluster != nil && controllers.PausedBy(cluster) != ""
}

// keys returns the keys of all pools.
func (c *Controller) keys() []cache.ObjectName {
	pools := c.pools()
	keys := make([]cache.ObjectName, len(pools))
	for i, pool := range pools {
		keys[i] = cache.MetaObjectToName(pool)
	}
	return keys
}

func (c *Controller) pools() []*v1beta1.NstanceMachinePool {
	pools, err := c.poolLister.List(labels.Everything())
	if err != nil {
		// A lister of a cache returns no errors.
		panic(err)
	}
	return pools
}

func (c *Controller) key(name string) cache.ObjectName {
	return cache.NewObjectName(c.cluster.Namespace, name)
}
