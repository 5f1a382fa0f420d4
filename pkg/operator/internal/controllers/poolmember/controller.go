// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package poolmember creates an NstanceMachine for each instance of a pool whose
// instances have Machines, and deletes the Machines of instances that a scale-down
// selected. Cluster API creates the Machine of an NstanceMachine, and deletes the
// NstanceMachine with its Machine (docs/capi.md#machines).
package poolmember

import (
	"context"
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
	// workers is the number of pools that are synced concurrently.
	workers = 4
	// orphanGrace is how long a Machine must be without its NstanceMachine before it is
	// deleted, because the caches of the two may have different ages.
	orphanGrace = 10 * time.Second
)

// Controller is the controller of the NstanceMachines of pools in one namespace. The
// keys of its queue are those of pools.
type Controller struct {
	controller.Registrations

	cluster cache.ObjectName

	nstanceMachines clientset.NstanceMachineInterface
	machines        *capi.MachineClient

	poolLister           nstancelisters.NstanceMachinePoolNamespaceLister
	nstanceMachineLister nstancelisters.NstanceMachineNamespaceLister
	clusterLister        listers.ResourceIndexer[*clusterv1.Cluster]
	poolIndex            *controllers.Pools
	members              *controllers.Members
	machineIndex         cache.Indexer
	machinePoolIndex     cache.Indexer

	groups    shard.Groups
	recorder  events.EventRecorder
	clock     clock.PassiveClock
	queue     *controller.Queue[cache.ObjectName]
	writes    *controller.WriteTracker
	deletions *controller.Deletions
	states    syncStates
}

// New returns the controller and registers its handlers. The pools belong to the
// Cluster d.ClusterName.
func New(d controllers.Dependencies) (*Controller, error) {
	members, err := controllers.NewMembers(d.Informers.Nstance)
	if err != nil {
		return nil, err
	}
	pools := d.Informers.Nstance.NstanceMachinePools()
	nstanceMachines := d.Informers.Nstance.NstanceMachines()
	poolIndex, err := controllers.NewPools(pools.Informer())
	if err != nil {
		return nil, err
	}
	c := &Controller{
		cluster:              cache.NewObjectName(d.Namespace, d.ClusterName),
		nstanceMachines:      d.Nstance.NstanceMachines(d.Namespace),
		machines:             d.CAPI.Machines(d.Namespace),
		poolLister:           pools.Lister().NstanceMachinePools(d.Namespace),
		nstanceMachineLister: nstanceMachines.Lister().NstanceMachines(d.Namespace),
		clusterLister:        d.Informers.Clusters.Lister(),
		poolIndex:            poolIndex,
		members:              members,
		machineIndex:         d.Informers.Machines.GetIndexer(),
		machinePoolIndex:     d.Informers.MachinePools.GetIndexer(),
		groups:               d.Groups,
		recorder:             d.Recorder,
		clock:                d.Clock,
		writes:               controller.NewWriteTracker(nstanceMachines.Informer().GetStore()),
		deletions:            controller.NewDeletions(d.Clock),
	}
	c.queue = controller.NewQueue("poolmember", c.sync)
	c.queue.SeedWith(c.keys)

	d.WatchShards(c.shardChanged, c.groupChanged)
	c.Registrations, err = controller.Watch(
		controller.Watched{What: "pools", Informer: pools.Informer(), Handler: controller.OnChange(c.poolChanged)},
		controller.Watched{What: "shard groups", Informer: d.Informers.Nstance.NstanceShardGroups().Informer(), Handler: controller.OnChange(c.shardGroupChanged)},
		controller.Watched{What: "NstanceMachines", Informer: nstanceMachines.Informer(), Handler: controller.OnChange(c.nstanceMachineChanged)},
		controller.Watched{What: "Machines", Informer: d.Informers.Machines, Indexers: machineIndexers, Handler: controller.OnChange(c.machineChanged)},
		controller.Watched{What: "MachinePools", Informer: d.Informers.MachinePools, Indexers: machinePoolIndexers, Handler: controller.OnChange(c.machinePoolChanged)},
		controller.Watched{What: "Clusters", Informer: d.Informers.Clusters, Handler: controller.OnChange(c.clusterChanged)},
	)
	return c, err
}

// Run syncs pools until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }
