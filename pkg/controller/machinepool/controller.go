// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package machinepool spreads the replicas of a MachinePool over the shards of
// its NstanceMachinePool, one NstanceShardGroup each, and adds up what the shard
// groups report.
package machinepool

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	indexers "k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	informers "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	listers "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

const (
	// workers bound how many pools are synced at once.
	workers = 4
	// shardGroupBatch is how long a pool waits for more shards to report, and
	// after a Node came or went for its shard to report that. It is longer than
	// what a shard group waits for more instances, so that a change of several
	// shards is one write to the pool.
	shardGroupBatch = 2 * controller.BatchPeriod
	// staleRetry is how long a sync waits for the caches to show its last write.
	staleRetry = 50 * time.Millisecond
)

// Shards tells which shards are configured.
type Shards interface {
	Has(shard string) bool
}

// Groups is the cache of what shard servers report.
type Groups interface {
	// Get returns a group of a shard, if the shard has it.
	Get(shard, key string) (shard.Group, bool)
	// HasSynced tells whether the shard's groups are known completely.
	HasSynced(shard string) bool
}

// Controller is the controller of NstanceMachinePools in one namespace.
type Controller struct {
	namespace   string
	clusterName string

	pools        clientset.NstanceMachinePoolInterface
	shardGroups  clientset.NstanceShardGroupInterface
	members      clientset.NstanceMachineInterface
	capi         *capi.Client
	machinePools *capi.MachinePoolClient
	machines     *capi.MachineClient

	poolLister       listers.NstanceMachinePoolNamespaceLister
	shardGroupLister listers.NstanceShardGroupNamespaceLister
	memberLister     listers.NstanceMachineNamespaceLister
	memberIndex      cache.Indexer
	poolIndex        cache.Indexer
	shardGroupIndex  cache.Indexer
	machinePoolIndex cache.Indexer
	clusterLister    indexers.ResourceIndexer[*clusterv1.Cluster]
	nodes            *controller.Nodes

	shards   Shards
	groups   Groups
	recorder events.EventRecorder
	queue    *controller.Queue[cache.ObjectName]
	onPause  func(shardGroup cache.ObjectName)
	servers  servers
	// annotations are those of MachinePools that annotate leaves alone.
	annotations annotationOwners

	poolWrites        *controller.Writes
	shardGroupWrites  *controller.Writes
	machinePoolWrites *controller.Writes
}

// New makes the controller and registers its handlers, whose registrations are
// returned for waiting until they have seen every object. MachinePools that it
// makes belong to the Cluster named clusterName.
func New(
	namespace, clusterName string,
	client clientset.InfrastructureV1beta1Interface,
	capiClient *capi.Client,
	pools informers.NstanceMachinePoolInformer,
	shardGroups informers.NstanceShardGroupInformer,
	members informers.NstanceMachineInformer,
	machinePools *capi.Informer[*clusterv1.MachinePool],
	clusters *capi.Informer[*clusterv1.Cluster],
	nodes cache.SharedIndexInformer,
	shards Shards,
	groups Groups,
	recorder events.EventRecorder,
) (*Controller, []cache.ResourceEventHandlerRegistration, error) {
	nodeIndex, err := controller.NewNodes(nodes)
	if err != nil {
		return nil, nil, err
	}
	c := &Controller{
		namespace:         namespace,
		clusterName:       clusterName,
		pools:             client.NstanceMachinePools(namespace),
		shardGroups:       client.NstanceShardGroups(namespace),
		members:           client.NstanceMachines(namespace),
		capi:              capiClient,
		machinePools:      capiClient.MachinePools(namespace),
		machines:          capiClient.Machines(namespace),
		poolLister:        pools.Lister().NstanceMachinePools(namespace),
		shardGroupLister:  shardGroups.Lister().NstanceShardGroups(namespace),
		memberLister:      members.Lister().NstanceMachines(namespace),
		memberIndex:       members.Informer().GetIndexer(),
		poolIndex:         pools.Informer().GetIndexer(),
		shardGroupIndex:   shardGroups.Informer().GetIndexer(),
		machinePoolIndex:  machinePools.GetIndexer(),
		clusterLister:     clusters.Lister(),
		nodes:             nodeIndex,
		shards:            shards,
		groups:            groups,
		recorder:          recorder,
		poolWrites:        controller.NewWrites(pools.Informer().GetStore()),
		shardGroupWrites:  controller.NewWrites(shardGroups.Informer().GetStore()),
		machinePoolWrites: controller.NewWrites(machinePools.GetStore()),
	}
	c.queue = controller.NewQueue("machinepool", c.sync)

	registrations, err := controller.Watch(
		controller.Watched{What: "pools", Informer: pools.Informer(), Indexers: poolIndexers, Handler: controller.OnChange(c.poolChanged)},
		controller.Watched{What: "shard groups", Informer: shardGroups.Informer(), Indexers: shardGroupIndexers, Handler: controller.OnChange(c.shardGroupChanged)},
		controller.Watched{What: "machines", Informer: members.Informer(), Indexers: memberIndexers, Handler: controller.OnChange(c.memberChanged)},
		controller.Watched{What: "MachinePools", Informer: machinePools, Handler: controller.OnChange(c.machinePoolChanged)},
		controller.Watched{What: "Clusters", Informer: clusters, Handler: controller.OnChange(c.clusterChanged)},
		controller.Watched{What: "Nodes", Informer: nodes, Handler: controller.OnChange(c.nodeChanged)},
	)
	return c, registrations, err
}

// Run syncs pools until ctx ends.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }

// ShardChanged is to be called when a shard was configured or removed, became
// synced, or when its connection came or went.
func (c *Controller) ShardChanged(shard string) {
	for _, pool := range controller.Indexed[v1beta1.NstanceMachinePool](c.poolIndex, byShard, shard) {
		c.queue.Add(cache.MetaObjectToName(pool))
	}
}

// poolChanged sees every change of a pool. A new spec is synced at once. A new
// status is our own, and waking for it would cut short the wait for more shards
// to report; what somebody else writes there is put right by the resync.
func (c *Controller) poolChanged(before, after *v1beta1.NstanceMachinePool) {
	switch {
	case after == nil:
		c.queue.Add(cache.MetaObjectToName(before))
	case before != nil && controller.PauseChanged(before, after):
		c.wakeWithShardGroups(after.Name)
	case before == nil || before.Generation != after.Generation || before.ResourceVersion == after.ResourceVersion ||
		!slices.Equal(before.Finalizers, after.Finalizers):
		c.queue.Add(cache.MetaObjectToName(after))
	}
}

// shardGroupChanged wakes the pool of a shard group. Instances come up one by
// one and shard after shard; their pool takes them up in batches, with the first
// report of a shard group that was just made.
func (c *Controller) shardGroupChanged(before, after *v1beta1.NstanceShardGroup) {
	group := after
	if group == nil {
		group = before
	}
	pool := poolOf(group)
	switch {
	case pool == "":
	case after == nil || before != nil && before.Generation != after.Generation:
		c.queue.Add(c.key(pool))
	case before == nil || before.ResourceVersion == after.ResourceVersion || tellsNews(before, after):
		c.queue.AddAfter(c.key(pool), shardGroupBatch)
	}
}

// machinePoolChanged wakes the pool that a MachinePool refers to, and the one of
// its name, which has to make do without while the MachinePool refers elsewhere.
// Of a MachinePool only its replicas matter, whether the cluster autoscaler scales
// it, whether it is paused, and whether it goes; its status is Cluster API's.
func (c *Controller) machinePoolChanged(before, after *clusterv1.MachinePool) {
	wake := func(pool string) { c.queue.Add(c.key(pool)) }
	if before != nil && after != nil {
		switch {
		case controller.PauseChanged(before, after):
			wake = c.wakeWithShardGroups
		case before.ResourceVersion != after.ResourceVersion &&
			ptr.Equal(before.Spec.Replicas, after.Spec.Replicas) && capi.ReplicasOwned(before) == capi.ReplicasOwned(after) &&
			before.DeletionTimestamp.IsZero() == after.DeletionTimestamp.IsZero() &&
			autoscaled(before) == autoscaled(after) &&
			capi.PoolOf(before) == capi.PoolOf(after):
			return
		}
	}
	for _, machinePool := range []*clusterv1.MachinePool{before, after} {
		if machinePool == nil {
			continue
		}
		wake(machinePool.Name)
		if pool := capi.PoolOf(machinePool); pool != "" {
			wake(pool)
		}
	}
}

// memberChanged wakes the pool of an instance that is to end or has ended: it may
// wait for that to go itself.
func (c *Controller) memberChanged(before, after *v1beta1.NstanceMachine) {
	member := after
	switch {
	case after == nil:
		member = before
	case after.DeletionTimestamp.IsZero(), before != nil && !before.DeletionTimestamp.IsZero():
		return
	}
	if pool := controller.PoolOf(member); pool != nil {
		c.queue.Add(c.key(pool.Name))
	}
}

// nodeChanged wakes the pools that have an instance with the Node's provider id.
func (c *Controller) nodeChanged(before, after *corev1.Node) {
	if before != nil && after != nil && before.Spec.ProviderID == after.Spec.ProviderID {
		return
	}
	for _, node := range []*corev1.Node{before, after} {
		if node == nil || node.Spec.ProviderID == "" {
			continue
		}
		for _, group := range c.shardGroupsWith(node.Spec.ProviderID) {
			if pool := poolOf(group); pool != "" {
				c.queue.AddAfter(c.key(pool), shardGroupBatch)
			}
		}
	}
}

func (c *Controller) key(name string) cache.ObjectName {
	return cache.NewObjectName(c.namespace, name)
}
