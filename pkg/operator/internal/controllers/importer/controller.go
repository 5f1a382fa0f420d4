// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package importer creates an NstanceMachinePool for each group that shards have
// and no pool refers to. The MachinePool follows from the pool, as for one that a
// user creates. Objects that exist are never changed.
package importer

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/controller"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	nstancelisters "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

const (
	// workers is the number of groups that are synced at once.
	workers = 4
	// settleTime is the delay between a change and the sync of its group. Servers
	// read their configuration every few seconds, each at its own time; the delay
	// lets one sync see the same change of all servers.
	settleTime = 5 * time.Second
)

// Controller imports groups. The keys of its queue are those of groups, as
// namespace/group.
type Controller struct {
	controller.Registrations

	namespace   string
	clusterName string

	pools            clientset.NstanceMachinePoolInterface
	poolLister       nstancelisters.NstanceMachinePoolNamespaceLister
	shardGroupLister nstancelisters.NstanceShardGroupNamespaceLister
	clusterLister    listers.ResourceIndexer[*clusterv1.Cluster]
	poolIndex        *controllers.Pools
	machinePoolIndex cache.Indexer

	shards   shard.Set
	groups   shard.Groups
	recorder events.EventRecorder
	queue    *controller.Queue[cache.ObjectName]
	writes   *controller.WriteTracker
	metrics  *metrics

	// invalidNames are the groups whose names were logged as invalid.
	invalidNames sync.Map
}

// New returns the controller and registers its handlers. Pools that it creates
// belong to the Cluster d.ClusterName.
func New(d controllers.Dependencies) (*Controller, error) {
	pools := d.Informers.Nstance.NstanceMachinePools()
	shardGroups := d.Informers.Nstance.NstanceShardGroups()
	poolIndex, err := controllers.NewPools(pools.Informer())
	if err != nil {
		return nil, err
	}
	c := &Controller{
		namespace:        d.Namespace,
		clusterName:      d.ClusterName,
		pools:            d.Nstance.NstanceMachinePools(d.Namespace),
		poolLister:       pools.Lister().NstanceMachinePools(d.Namespace),
		shardGroupLister: shardGroups.Lister().NstanceShardGroups(d.Namespace),
		clusterLister:    d.Informers.Clusters.Lister(),
		poolIndex:        poolIndex,
		machinePoolIndex: d.Informers.MachinePools.GetIndexer(),
		shards:           d.NamedShards,
		groups:           d.Groups,
		recorder:         d.Recorder,
		writes:           controller.NewWriteTracker(pools.Informer().GetStore()),
		metrics:          newMetrics(d.Metrics),
	}
	c.queue = controller.NewQueue("importer", c.sync)
	c.queue.SeedWith(c.keys)

	c.Registrations, err = controller.Watch(
		controller.Watched{What: "pools", Informer: pools.Informer(), Handler: controller.OnChange(c.poolChanged)},
		controller.Watched{What: "shard groups", Informer: shardGroups.Informer(), Handler: controller.OnChange(c.shardGroupChanged)},
		controller.Watched{What: "MachinePools", Informer: d.Informers.MachinePools, Handler: controller.OnChange(c.machinePoolChanged)},
		controller.Watched{What: "Clusters", Informer: d.Informers.Clusters, Handler: controller.OnChange(c.clusterChanged)},
	)
	d.NamedShards.AddHandler(c.shardChanged)
	d.Groups.AddHandler(shard.GroupHandler{OnGroup: c.groupChanged, OnShard: c.shardChanged})
	return c, err
}

// Run syncs groups until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }
