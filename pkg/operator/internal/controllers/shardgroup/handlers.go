// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// byShard is the index of shard groups by the shard they are on.
const byShard = "shard"

var indexers = cache.Indexers{byShard: func(obj any) ([]string, error) {
	if group, ok := obj.(*v1beta1.NstanceShardGroup); ok {
		return []string{string(group.Spec.Shard)}, nil
	}
	return nil, nil
}}

// shardGroupChanged enqueues a shard group at once for a new spec. It ignores a new
// status, which is our own: a sync for it would cut short the delay that batches the
// changes of instances. Changes of the status by another writer are reverted by the
// resync.
func (c *Controller) shardGroupChanged(before, after *v1beta1.NstanceShardGroup) {
	switch {
	case after == nil:
		c.queue.Add(cache.MetaObjectToName(before))
	case before == nil || before.Generation != after.Generation || before.ResourceVersion == after.ResourceVersion ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() || controllers.PauseChanged(before, after) ||
		before.Annotations[v1beta1.AnnotationReplaces] != after.Annotations[v1beta1.AnnotationReplaces] ||
		before.Annotations[v1beta1.AnnotationAbandonedShard] != after.Annotations[v1beta1.AnnotationAbandonedShard]:
		c.queue.Add(cache.MetaObjectToName(after))
	}
}

// groupChanged enqueues the shard group of a cached group that changed.
func (c *Controller) groupChanged(shard, key string) {
	c.queue.AddAfter(c.key(v1beta1.ShardGroupName(key, shard)), controller.BatchPeriod)
}

// drainsChanged enqueues the shard group of an instance whose drain made progress.
func (c *Controller) drainsChanged(shard, group, _ string) { c.groupChanged(shard, group) }

// drainsReported enqueues the shard groups of a shard whose drains are all known, if they
// had drains before.
func (c *Controller) drainsReported(id string) {
	if !c.notices.Settled(id) {
		return
	}
	for _, group := range controller.Indexed[v1beta1.NstanceShardGroup](c.indexer, byShard, id) {
		if ptr.Deref(group.Status.Draining, 0) > 0 {
			c.queue.AddAfter(cache.MetaObjectToName(group), controller.BatchPeriod)
		}
	}
}

// shardChanged enqueues the shard groups of a shard: at once when it is reachable,
// and otherwise after a grace period in which it may be back.
func (c *Controller) shardChanged(id string) {
	c.metrics.setShard(id, c.shards.Has(id))
	delay := time.Duration(0)
	if reachable, _ := c.groups.Reachable(id); !reachable {
		delay = controllers.LostGrace
	}
	for _, group := range controller.Indexed[v1beta1.NstanceShardGroup](c.indexer, byShard, id) {
		c.queue.AddAfter(cache.MetaObjectToName(group), delay)
	}
}

// keys returns the keys of all shard groups.
func (c *Controller) keys() []cache.ObjectName {
	shardGroups, err := c.lister.List(labels.Everything())
	if err != nil {
		// The lister of a cache returns no errors.
		panic(err)
	}
	keys := make([]cache.ObjectName, len(shardGroups))
	for i, shardGroup := range shardGroups {
		keys[i] = cache.MetaObjectToName(shardGroup)
	}
	return keys
}

func (c *Controller) key(name string) cache.ObjectName {
	return cache.NewObjectName(c.namespace, name)
}
