// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package importer makes an NstanceMachinePool for each group that the shards
// have and no pool stands for. The MachinePool follows from the pool, as for one
// that a user makes. What is in Kubernetes already is never changed.
package importer

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	informers "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	nstancelisters "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

const (
	// workers bound how many pools are made at once.
	workers = 4
	// settleTime is how long a group waits after news of it for the same news from
	// elsewhere: servers whose configurations change together are then seen
	// together, and so are all the objects that go with one pool. Servers look at
	// their configurations every few seconds, each in its own time.
	settleTime = 5 * time.Second
	// staleRetry is how long a sync waits for the cache to show its last write.
	staleRetry = 50 * time.Millisecond
)

// Shards tells which shards are configured.
type Shards interface {
	// Shards are the ids of the configured shards.
	Shards() []string
}

// Groups is the cache of what shard servers report.
type Groups interface {
	// Get returns a group of a shard, if the shard has it.
	Get(shard, key string) (shard.Group, bool)
	// List returns the groups of a shard.
	List(shard string) []shard.Group
	// HasSynced tells whether the shard's groups are known completely.
	HasSynced(shard string) bool
	// Reachable tells whether the shard is connected, and if not why.
	Reachable(shard string) (bool, error)
}

// Controller is the controller of groups that have no pool. The keys of its queue
// are those of groups, as namespace/group.
type Controller struct {
	namespace   string
	clusterName string

	pools            clientset.NstanceMachinePoolInterface
	poolLister       nstancelisters.NstanceMachinePoolNamespaceLister
	shardGroupLister nstancelisters.NstanceShardGroupNamespaceLister
	clusterLister    listers.ResourceIndexer[*clusterv1.Cluster]
	poolIndex        cache.Indexer
	machinePoolIndex cache.Indexer

	shards   Shards
	groups   Groups
	recorder events.EventRecorder
	queue    *controller.Queue[cache.ObjectName]
	writes   *controller.Writes

	// unnameable are the groups that were logged because no pool can have them.
	unnameable sync.Map
}

// New makes the controller and registers its handlers, whose registrations are
// returned for waiting until they have seen every object. Pools that it makes
// belong to the Cluster named clusterName.
func New(
	namespace, clusterName string,
	client clientset.InfrastructureV1beta1Interface,
	pools informers.NstanceMachinePoolInformer,
	shardGroups informers.NstanceShardGroupInformer,
	machinePools *capi.Informer[*clusterv1.MachinePool],
	clusters *capi.Informer[*clusterv1.Cluster],
	shards Shards,
	groups Groups,
	recorder events.EventRecorder,
) (*Controller, []cache.ResourceEventHandlerRegistration, error) {
	c := &Controller{
		namespace:        namespace,
		clusterName:      clusterName,
		pools:            client.NstanceMachinePools(namespace),
		poolLister:       pools.Lister().NstanceMachinePools(namespace),
		shardGroupLister: shardGroups.Lister().NstanceShardGroups(namespace),
		clusterLister:    clusters.Lister(),
		poolIndex:        pools.Informer().GetIndexer(),
		machinePoolIndex: machinePools.GetIndexer(),
		shards:           shards,
		groups:           groups,
		recorder:         recorder,
		writes:           controller.NewWrites(pools.Informer().GetStore()),
	}
	c.queue = controller.NewQueue("importer", c.sync)

	registrations, err := controller.Watch(
		controller.Watched{What: "pools", Informer: pools.Informer(), Indexers: poolIndexers, Handler: controller.OnChange(c.poolChanged)},
		controller.Watched{What: "shard groups", Informer: shardGroups.Informer(), Handler: controller.OnChange(c.shardGroupChanged)},
		controller.Watched{What: "MachinePools", Informer: machinePools, Handler: controller.OnChange(c.machinePoolChanged)},
		controller.Watched{What: "Clusters", Informer: clusters, Handler: controller.OnChange(c.clusterChanged)},
	)
	return c, registrations, err
}

// Run syncs groups until ctx ends.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }

// GroupChanged is to be called when the cache of a shard's groups has changed.
func (c *Controller) GroupChanged(_, key string) { c.queue.AddAfter(c.key(key), settleTime) }

// ShardChanged is to be called when a shard was configured or removed, became
// synced, or when its connection came or went. What is known of one shard decides
// about the groups of all.
func (c *Controller) ShardChanged(string) { c.wakeAll(settleTime) }

// poolChanged wakes the group of a pool when the pool appears, changes or goes,
// and one that has waited for the pool's name.
func (c *Controller) poolChanged(before, after *v1beta1.NstanceMachinePool) {
	switch {
	case after == nil:
		c.queue.AddAfter(c.key(string(before.Spec.Group)), settleTime)
		c.queue.AddAfter(c.key(before.Name), settleTime)
	case before == nil || before.Generation != after.Generation:
		c.queue.AddAfter(c.key(string(after.Spec.Group)), settleTime)
	}
}

// shardGroupChanged wakes a group whose pool is gone, or no longer names a shard,
// when what was left of that is gone as well.
func (c *Controller) shardGroupChanged(before, after *v1beta1.NstanceShardGroup) {
	if after == nil {
		c.queue.AddAfter(c.key(string(before.Spec.Group)), settleTime)
	}
}

// machinePoolChanged wakes a group that has waited for the end of a MachinePool.
func (c *Controller) machinePoolChanged(before, after *clusterv1.MachinePool) {
	if before == nil {
		return
	}
	waited := takesAlong(before)
	if waited != "" && (after == nil || takesAlong(after) != waited) {
		c.queue.Add(c.key(waited))
	}
}

// clusterChanged wakes the groups when the Cluster no longer keeps them waiting.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	if before != nil && before.Name == c.clusterName && holdsUp(before) && !holdsUp(after) {
		c.wakeAll(0)
	}
}

// wakeAll wakes every group that the shards have, after some time.
func (c *Controller) wakeAll(delay time.Duration) {
	for _, id := range c.shards.Shards() {
		for _, group := range c.groups.List(id) {
			c.queue.AddAfter(c.key(group.Key), delay)
		}
	}
}

func (c *Controller) key(group string) cache.ObjectName {
	return cache.NewObjectName(c.namespace, group)
}
