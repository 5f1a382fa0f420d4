// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package poolmachine gives an NstanceMachine to each instance of a pool whose
// instances have Machines, and deletes the Machines of those that are to go. The
// Machine of an NstanceMachine is made by Cluster API, and the NstanceMachine goes
// with its Machine (CAPI contract).
package poolmachine

import (
	"context"
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
	// workers bound how many pools are synced at once.
	workers = 4
	// staleRetry is how long a sync waits for the cache to show its last writes.
	staleRetry = 50 * time.Millisecond
	// orphanGrace is how long a Machine has to be without its NstanceMachine before
	// it is deleted. The caches of the two are not at the same time.
	orphanGrace = 10 * time.Second
)

// Groups is the cache of what shard servers report.
type Groups interface {
	// Get returns a group of a shard, if the shard has it.
	Get(shard, key string) (shard.Group, bool)
	// HasSynced tells whether the shard's groups are known completely.
	HasSynced(shard string) bool
}

// Controller is the controller of the members of pools in one namespace: the
// NstanceMachines that stand for the instances of a pool. Its keys are the pools.
type Controller struct {
	namespace   string
	clusterName string

	members  clientset.NstanceMachineInterface
	machines *capi.MachineClient

	poolLister       listers.NstanceMachinePoolNamespaceLister
	memberLister     listers.NstanceMachineNamespaceLister
	clusterLister    indexers.ResourceIndexer[*clusterv1.Cluster]
	poolIndex        cache.Indexer
	shardGroupIndex  cache.Indexer
	memberIndex      cache.Indexer
	machineIndex     cache.Indexer
	machinePoolIndex cache.Indexer

	groups   Groups
	recorder events.EventRecorder
	clock    clock.PassiveClock
	queue    *controller.Queue[cache.ObjectName]
	writes   *controller.Writes
	memories memories
}

// New makes the controller and registers its handlers, whose registrations are
// returned for waiting until they have seen every object. The pools belong to the
// Cluster named clusterName.
func New(
	namespace, clusterName string,
	client clientset.InfrastructureV1beta1Interface,
	capiClient *capi.Client,
	pools informers.NstanceMachinePoolInformer,
	shardGroups informers.NstanceShardGroupInformer,
	members informers.NstanceMachineInformer,
	machines *capi.Informer[*clusterv1.Machine],
	machinePools *capi.Informer[*clusterv1.MachinePool],
	clusters *capi.Informer[*clusterv1.Cluster],
	groups Groups,
	recorder events.EventRecorder,
	clock clock.PassiveClock,
) (*Controller, []cache.ResourceEventHandlerRegistration, error) {
	c := &Controller{
		namespace:        namespace,
		clusterName:      clusterName,
		members:          client.NstanceMachines(namespace),
		machines:         capiClient.Machines(namespace),
		poolLister:       pools.Lister().NstanceMachinePools(namespace),
		memberLister:     members.Lister().NstanceMachines(namespace),
		clusterLister:    clusters.Lister(),
		poolIndex:        pools.Informer().GetIndexer(),
		shardGroupIndex:  shardGroups.Informer().GetIndexer(),
		memberIndex:      members.Informer().GetIndexer(),
		machineIndex:     machines.GetIndexer(),
		machinePoolIndex: machinePools.GetIndexer(),
		groups:           groups,
		recorder:         recorder,
		clock:            clock,
		writes:           controller.NewWrites(members.Informer().GetStore()),
	}
	c.queue = controller.NewQueue("poolmachine", c.sync)

	registrations, err := controller.Watch(
		controller.Watched{What: "pools", Informer: pools.Informer(), Indexers: poolIndexers, Handler: controller.OnChange(c.poolChanged)},
		controller.Watched{What: "shard groups", Informer: shardGroups.Informer(), Indexers: shardGroupIndexers, Handler: controller.OnChange(c.shardGroupChanged)},
		controller.Watched{What: "machines", Informer: members.Informer(), Indexers: memberIndexers, Handler: controller.OnChange(c.memberChanged)},
		controller.Watched{What: "Machines", Informer: machines, Indexers: machineIndexers, Handler: controller.OnChange(c.machineChanged)},
		controller.Watched{What: "MachinePools", Informer: machinePools, Indexers: machinePoolIndexers, Handler: controller.OnChange(c.machinePoolChanged)},
		controller.Watched{What: "Clusters", Informer: clusters, Handler: controller.OnChange(c.clusterChanged)},
	)
	return c, registrations, err
}

// Run syncs pools until ctx ends.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }

func (c *Controller) key(name string) cache.ObjectName {
	return cache.NewObjectName(c.namespace, name)
}
