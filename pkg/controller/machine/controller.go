// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package machine makes the instance of each NstanceMachine that a Cluster API
// Machine owns, follows it until it runs, finds its Node, and ends it with the
// NstanceMachine. When the shard ends an instance by itself, its Machine is
// deleted. The instances of pools, which shards make by themselves, are followed
// and ended in the same way.
package machine

import (
	"context"
	"sync"
	"time"

	indexers "k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	informers "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	listers "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

const (
	// workers bound how many machines are synced at once, and so how many calls
	// the shards get at once when all machines have something to ask.
	workers = 8
	// refusedRetry is how long an order that a shard refused waits for its next
	// try, unless the group changes before.
	refusedRetry = 5 * time.Minute
	// lostGrace is how long a shard may be away before its machines say so. A
	// server that restarts is back within it, and costs no writes.
	lostGrace = 5 * time.Second
	// staleRetry is how long a sync waits for the cache to show its last write.
	staleRetry = 50 * time.Millisecond
	// nodeRefGrace is how long Cluster API has to find the Node of a Machine
	// before we tell it.
	nodeRefGrace = 30 * time.Second
)

// Shards makes and ends instances on shard servers.
type Shards interface {
	// Has tells whether a shard is configured.
	Has(shard string) bool
	// Shards are the ids of the configured shards, sorted.
	Shards() []string
	// CreateInstance orders one instance. Called again with the same request id
	// and order it gives the same instance.
	CreateInstance(ctx context.Context, shard, requestID string, order shard.InstanceOrder) (shard.Instance, error)
	// Instance asks for one instance. One that the shard does not know is an error
	// for which shard.IsNotFound is true.
	Instance(ctx context.Context, shard, id string) (shard.Instance, error)
	// DeleteInstance ends an instance and tells whether it is gone already.
	DeleteInstance(ctx context.Context, shard, id string) (gone bool, err error)
}

// Groups is the cache of what shard servers report of their groups.
type Groups interface {
	// Get returns a group of a shard, if the shard has it.
	Get(shard, key string) (shard.Group, bool)
	// HasSynced tells whether the shard's groups are known completely.
	HasSynced(shard string) bool
	// Reachable tells whether the shard is connected, and if not why. No reason
	// means that it is not known yet.
	Reachable(shard string) (bool, error)
}

// Notices is the cache of what shard servers announce of their instances' ends.
type Notices interface {
	// Get returns the notice of an instance, if there is one.
	Get(shard, id string) (shard.Notice, bool)
	// Session counts how often the watch of a shard has opened and settled. What
	// was verified in one session needs no verifying before the next.
	Session(shard string) int64
}

// Drains tells how the drain of an instance's Node gets on.
type Drains interface {
	OfInstance(shard, id string) (blocked bool, message string, draining bool)
}

// Controller is the controller of NstanceMachines in one namespace.
type Controller struct {
	namespace   string
	clusterName string

	machines     clientset.NstanceMachineInterface
	owners       *capi.MachineClient
	machinePools *capi.MachinePoolClient

	machineLister    listers.NstanceMachineNamespaceLister
	machineIndex     cache.Indexer
	ownerLister      indexers.ResourceIndexer[*clusterv1.Machine]
	poolLister       listers.NstanceMachinePoolNamespaceLister
	shardGroupLister listers.NstanceShardGroupNamespaceLister
	machinePoolIndex cache.Indexer
	clusterLister    indexers.ResourceIndexer[*clusterv1.Cluster]
	nodes            *controller.Nodes

	shards   Shards
	groups   Groups
	notices  Notices
	drains   Drains
	recorder events.EventRecorder
	clock    clock.PassiveClock
	queue    *controller.Queue[cache.ObjectName]
	writes   *controller.Writes

	// placing guards placements.
	placing    sync.Mutex
	placements map[cache.ObjectName]placement

	// remembering guards memories, and not what is in them.
	remembering sync.Mutex
	memories    map[cache.ObjectName]*memory
}

// New makes the controller and registers its handlers, whose registrations are
// returned for waiting until they have seen every object. All machines belong to
// the Cluster named clusterName; owners are the Machines of Cluster API. Pools,
// shardGroups and machinePools are only read.
func New(
	namespace, clusterName string,
	client clientset.InfrastructureV1beta1Interface,
	capiClient *capi.Client,
	machines informers.NstanceMachineInformer,
	owners *capi.Informer[*clusterv1.Machine],
	pools informers.NstanceMachinePoolInformer,
	shardGroups informers.NstanceShardGroupInformer,
	machinePools *capi.Informer[*clusterv1.MachinePool],
	clusters *capi.Informer[*clusterv1.Cluster],
	nodes cache.SharedIndexInformer,
	shards Shards,
	groups Groups,
	notices Notices,
	drains Drains,
	recorder events.EventRecorder,
	clock clock.PassiveClock,
) (*Controller, []cache.ResourceEventHandlerRegistration, error) {
	nodeIndex, err := controller.NewNodes(nodes)
	if err != nil {
		return nil, nil, err
	}
	c := &Controller{
		namespace:        namespace,
		clusterName:      clusterName,
		machines:         client.NstanceMachines(namespace),
		owners:           capiClient.Machines(namespace),
		machinePools:     capiClient.MachinePools(namespace),
		machineLister:    machines.Lister().NstanceMachines(namespace),
		machineIndex:     machines.Informer().GetIndexer(),
		ownerLister:      owners.Lister(),
		poolLister:       pools.Lister().NstanceMachinePools(namespace),
		shardGroupLister: shardGroups.Lister().NstanceShardGroups(namespace),
		machinePoolIndex: machinePools.GetIndexer(),
		clusterLister:    clusters.Lister(),
		nodes:            nodeIndex,
		shards:           shards,
		groups:           groups,
		notices:          notices,
		drains:           drains,
		recorder:         recorder,
		clock:            clock,
		writes:           controller.NewWrites(machines.Informer().GetStore()),
		placements:       make(map[cache.ObjectName]placement),
		memories:         make(map[cache.ObjectName]*memory),
	}
	c.queue = controller.NewQueue("machine", c.sync)

	registrations, err := controller.Watch(
		controller.Watched{What: "machines", Informer: machines.Informer(), Indexers: machineIndexers, Handler: controller.OnChange(c.machineChanged)},
		controller.Watched{What: "Machines", Informer: owners, Handler: controller.OnChange(c.ownerChanged)},
		controller.Watched{What: "Clusters", Informer: clusters, Handler: controller.OnChange(c.clusterChanged)},
		controller.Watched{What: "Nodes", Informer: nodes, Handler: controller.OnChange(c.nodeChanged)},
	)
	return c, registrations, err
}

// Run syncs machines until ctx ends.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }

func (c *Controller) key(name string) cache.ObjectName {
	return cache.NewObjectName(c.namespace, name)
}
