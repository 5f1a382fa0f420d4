// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package machine creates the instance of each NstanceMachine that a Machine of Cluster API
// owns, follows it until it runs, finds its Node, and deletes it with the NstanceMachine. If a
// shard has deleted an instance, the controller deletes its Machine. The instances of pools,
// which shards create, are followed and deleted in the same way.
package machine

import (
	"cmp"
	"context"
	"sync"
	"time"

	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	nstancelisters "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

const (
	// workers is the number of NstanceMachines of one shard that are synced at once, and so
	// the number of concurrent calls to the shard.
	workers = 8
	// rejectionRetry is the delay of a create request after the shard rejected it. A change of
	// the group ends the delay.
	rejectionRetry = 5 * time.Minute
	// unclearRetry is the delay of a create request that was either rejected or lost
	// (shard.IsUnclear). If the shard gives the same reply again, the request counts as
	// rejected.
	unclearRetry = 5 * time.Second
	// lostGrace is how long a shard may be disconnected before its NstanceMachines report it.
	// A server that restarts is reachable again within it, and causes no writes.
	lostGrace = 5 * time.Second
	// nodeRefGrace is how long Cluster API has to find the Node of a Machine before
	// the controller sets it.
	nodeRefGrace = 30 * time.Second
)

// Options are the dependencies that only this controller has.
type Options struct {
	// Drains reports the drains of the instances' Nodes.
	Drains Drains
}

// Drains is implemented by the controller of package drain.
type Drains interface {
	// OfInstance reports whether the Node of an instance is being drained, and whether and why
	// the drain is blocked.
	OfInstance(shard, id string) (blocked bool, message string, draining bool)
	// AddHandler registers a handler that is called when OfInstance changes.
	AddHandler(handler func(shard, group, instanceID string))
}

// Controller syncs the NstanceMachines of one namespace.
type Controller struct {
	controller.Registrations

	namespace   string
	clusterName string

	nstanceMachines clientset.NstanceMachineInterface
	machines        *capi.MachineClient
	machinePools    *capi.MachinePoolClient

	nstanceMachineLister nstancelisters.NstanceMachineNamespaceLister
	nstanceMachineIndex  cache.Indexer
	machineLister        listers.ResourceIndexer[*clusterv1.Machine]
	poolLister           nstancelisters.NstanceMachinePoolNamespaceLister
	shardGroupLister     nstancelisters.NstanceShardGroupNamespaceLister
	machinePoolIndex     cache.Indexer
	clusterLister        listers.ResourceIndexer[*clusterv1.Cluster]
	nodes                *controllers.Nodes

	shards      shard.Set
	shardClient shard.Client
	groups      shard.Groups
	notices     shard.Notices
	drains      Drains
	recorder    events.EventRecorder
	clock       clock.PassiveClock
	queue       *controller.Queue[cache.ObjectName]
	writes      *controller.WriteTracker
	deletions   *controller.Deletions

	providerErrors providerErrors
	placements     *placements

	// syncStatesMu guards the map syncStates, and not its values.
	syncStatesMu sync.Mutex
	syncStates   map[cache.ObjectName]*syncState
}

// New returns the controller and registers its handlers.
func New(d controllers.Dependencies, o Options) (*Controller, error) {
	nodes, err := controllers.NewNodes(&d)
	if err != nil {
		return nil, err
	}
	nstanceMachines := d.Informers.Nstance.NstanceMachines()
	c := &Controller{
		namespace:            d.Namespace,
		clusterName:          d.ClusterName,
		nstanceMachines:      d.Nstance.NstanceMachines(d.Namespace),
		machines:             d.CAPI.Machines(d.Namespace),
		machinePools:         d.CAPI.MachinePools(d.Namespace),
		nstanceMachineLister: nstanceMachines.Lister().NstanceMachines(d.Namespace),
		nstanceMachineIndex:  nstanceMachines.Informer().GetIndexer(),
		machineLister:        d.Informers.Machines.Lister(),
		poolLister:           d.Informers.Nstance.NstanceMachinePools().Lister().NstanceMachinePools(d.Namespace),
		shardGroupLister:     d.Informers.Nstance.NstanceShardGroups().Lister().NstanceShardGroups(d.Namespace),
		machinePoolIndex:     d.Informers.MachinePools.GetIndexer(),
		clusterLister:        d.Informers.Clusters.Lister(),
		nodes:                nodes,
		shards:               d.Shards,
		shardClient:          d.ShardClient,
		groups:               d.Groups,
		notices:              d.Notices,
		drains:               o.Drains,
		recorder:             d.Recorder,
		clock:                d.Clock,
		writes:               controller.NewWriteTracker(nstanceMachines.Informer().GetStore()),
		deletions:            controller.NewDeletions(d.Clock),
		placements:           newPlacements(),
		syncStates:           make(map[cache.ObjectName]*syncState),
	}
	c.queue = controller.NewShardQueue("machine", c.sync, c.shardOf, d.Shards.Has)
	c.queue.SeedWith(c.keys)
	c.Registrations, err = controller.Watch(
		controller.Watched{What: "NstanceMachines", Informer: nstanceMachines.Informer(), Indexers: indexers, Handler: controller.OnChange(c.nstanceMachineChanged)},
		controller.Watched{What: "Machines", Informer: d.Informers.Machines, Handler: controller.OnChange(c.machineChanged)},
		controller.Watched{What: "Clusters", Informer: d.Informers.Clusters, Handler: controller.OnChange(c.clusterChanged)},
		controller.Watched{What: "Nodes", Informer: d.Informers.Nodes, Handler: controller.OnChange(c.nodeChanged)},
	)
	if err != nil {
		return nil, err
	}
	d.WatchShards(c.shardChanged, c.groupChanged)
	d.Groups.AddHandler(shard.GroupHandler{OnError: c.errorReported})
	d.Notices.AddHandler(shard.NoticeHandler{OnInstance: c.instanceChanged, OnShard: c.shardChanged})
	o.Drains.AddHandler(func(shard, _, instanceID string) { c.instanceChanged(shard, instanceID) })
	return c, nil
}

// shardOf returns the shard of the instance of an NstanceMachine, empty if it has no shard
// yet.
func (c *Controller) shardOf(key cache.ObjectName) string {
	nstanceMachine, err := c.nstanceMachineLister.Get(key.Name)
	if err != nil {
		return ""
	}
	return cmp.Or(locate(nstanceMachine).shardID, string(nstanceMachine.Spec.Shard))
}

// Run syncs NstanceMachines until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }
