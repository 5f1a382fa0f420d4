// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"time"

	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// groupChanged enqueues a group whose cached state on a shard changed.
func (c *Controller) groupChanged(_, key string) { c.queue.AddAfter(c.key(key), settleTime) }

// shardChanged enqueues all groups: the state of one shard decides about the groups
// of all shards.
func (c *Controller) shardChanged(string) { c.enqueueAll(settleTime) }

// poolChanged enqueues the group of a pool that was added, changed or deleted. A
// deleted pool also frees its name for the group of that name.
func (c *Controller) poolChanged(before, after *v1beta1.NstanceMachinePool) {
	switch {
	case after == nil:
		c.queue.AddAfter(c.key(string(before.Spec.Group)), settleTime)
		c.queue.AddAfter(c.key(before.Name), settleTime)
	case before == nil || before.Generation != after.Generation:
		c.queue.AddAfter(c.key(string(after.Spec.Group)), settleTime)
	}
}

// shardGroupChanged enqueues a group when a shard group of a former pool was
// deleted.
func (c *Controller) shardGroupChanged(before, after *v1beta1.NstanceShardGroup) {
	if after == nil {
		c.queue.AddAfter(c.key(string(before.Spec.Group)), settleTime)
	}
}

// machinePoolChanged enqueues a group that waits for the deletion of a MachinePool.
func (c *Controller) machinePoolChanged(before, after *clusterv1.MachinePool) {
	if before == nil {
		return
	}
	pool := deletedPoolOf(before)
	if pool != "" && (after == nil || deletedPoolOf(after) != pool) {
		c.queue.Add(c.key(pool))
	}
}

// clusterChanged enqueues all groups when the Cluster no longer blocks imports.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	if before != nil && before.Name == c.clusterName && blocksImports(before) && !blocksImports(after) {
		c.enqueueAll(0)
	}
}

// enqueueAll enqueues every group that the shards have, after delay.
func (c *Controller) enqueueAll(delay time.Duration) {
	for _, key := range c.keys() {
		c.queue.AddAfter(key, delay)
	}
}

// keys returns the keys of all groups that the shards have, some of them repeatedly.
func (c *Controller) keys() []cache.ObjectName {
	var keys []cache.ObjectName
	for _, id := range c.shards.Shards() {
		for _, group := range c.groups.List(id) {
			keys = append(keys, c.key(group.Key))
		}
	}
	return keys
}

func (c *Controller) key(group string) cache.ObjectName {
	return cache.NewObjectName(c.namespace, group)
}
