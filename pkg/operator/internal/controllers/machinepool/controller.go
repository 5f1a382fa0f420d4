// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package machinepool divides the replicas of a MachinePool among the shards of its
// NstanceMachinePool, one NstanceShardGroup each, and adds up what the shard groups
// report.
package machinepool

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	nstancelisters "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/nodeannotations"
	"nstance.dev/operator/pkg/operator/internal/nodeless"
	"nstance.dev/operator/pkg/operator/internal/shortfall"
	"nstance.dev/operator/pkg/operator/shard"
)

const (
	// workers is the number of pools that are synced concurrently.
	workers = 4
	// shardGroupBatch is the delay of a sync after a shard group reported a change, or
	// after a Node was added or deleted, which its shard reports too. It is longer than
	// the batches of the shard groups, so that a change of several shards is one write
	// to the pool.
	shardGroupBatch = 2 * controller.BatchPeriod
)

// Controller is the controller of NstanceMachinePools in one namespace.
type Controller struct {
	controller.Registrations

	namespace   string
	clusterName string

	pools           clientset.NstanceMachinePoolInterface
	shardGroups     clientset.NstanceShardGroupInterface
	nstanceMachines clientset.NstanceMachineInterface
	capi            *capi.Client
	machinePools    *capi.MachinePoolClient
	machines        *capi.MachineClient

	poolLister           nstancelisters.NstanceMachinePoolNamespaceLister
	shardGroupLister     nstancelisters.NstanceShardGroupNamespaceLister
	nstanceMachineLister nstancelisters.NstanceMachineNamespaceLister
	members              *controllers.Members
	poolIndex            *controllers.Pools
	machinePoolIndex     cache.Indexer
	clusterLister        listers.ResourceIndexer[*clusterv1.Cluster]
	nodes                *controllers.Nodes
	nodeIndex            cache.Indexer
	workload             kubernetes.Interface
	nodesSynced          cache.InformerSynced
	// NodesReachable reports whether the API server of the Nodes can be reached. It is nil if that
	// is the API server of the pools.
	NodesReachable func() bool

	shards        shard.Set
	groups        shard.Groups
	notices       shard.Notices
	clock         clock.PassiveClock
	recorder      events.EventRecorder
	queue         *controller.Queue[cache.ObjectName]
	pauseHandlers []func(shardGroup cache.ObjectName)
	lastReported  lastReported
	// created has the UIDs of the MachinePools that this process created, by the name of
	// the pool.
	created    sync.Map
	annotator  nodeannotations.Annotator
	scaleDowns scaleDowns
	shortfalls shortfall.Times
	nodeless   *nodeless.Times

	outdatedMetric *prometheus.GaugeVec

	poolWrites        *controller.WriteTracker
	shardGroupWrites  *controller.WriteTracker
	machinePoolWrites *controller.WriteTracker
	staleReads        controller.StaleReads
}

// New returns the controller and registers its handlers. MachinePools that it creates
// belong to the Cluster d.ClusterName.
func New(d controllers.Dependencies) (*Controller, error) {
	nodes, err := controllers.NewNodes(&d)
	if err != nil {
		return nil, err
	}
	members, err := controllers.NewMembers(d.Informers.Nstance)
	if err != nil {
		return nil, err
	}
	pools := d.Informers.Nstance.NstanceMachinePools()
	poolIndex, err := controllers.NewPools(pools.Informer())
	if err != nil {
		return nil, err
	}
	shardGroups := d.Informers.Nstance.NstanceShardGroups()
	nstanceMachines := d.Informers.Nstance.NstanceMachines()
	c := &Controller{
		namespace:            d.Namespace,
		clusterName:          d.ClusterName,
		pools:                d.Nstance.NstanceMachinePools(d.Namespace),
		shardGroups:          d.Nstance.NstanceShardGroups(d.Namespace),
		nstanceMachines:      d.Nstance.NstanceMachines(d.Namespace),
		capi:                 d.CAPI,
		machinePools:         d.CAPI.MachinePools(d.Namespace),
		machines:             d.CAPI.Machines(d.Namespace),
		poolLister:           pools.Lister().NstanceMachinePools(d.Namespace),
		shardGroupLister:     shardGroups.Lister().NstanceShardGroups(d.Namespace),
		nstanceMachineLister: nstanceMachines.Lister().NstanceMachines(d.Namespace),
		members:              members,
		poolIndex:            poolIndex,
		machinePoolIndex:     d.Informers.MachinePools.GetIndexer(),
		clusterLister:        d.Informers.Clusters.Lister(),
		nodes:                nodes,
		nodeIndex:            d.Informers.Nodes.GetIndexer(),
		workload:             d.Workload.Kube,
		nodesSynced:          d.Informers.Nodes.HasSynced,
		nodeless:             nodeless.NewTimes(d.Metrics),
		outdatedMetric:       newOutdatedMetric(d.Metrics),
		shards:               d.Shards,
		groups:               d.Groups,
		notices:              d.Notices,
		clock:                d.Clock,
		recorder:             d.Recorder,
		poolWrites:           controller.NewWriteTracker(pools.Informer().GetStore()),
		shardGroupWrites:     controller.NewWriteTracker(shardGroups.Informer().GetStore()),
		machinePoolWrites:    controller.NewWriteTracker(d.Informers.MachinePools.GetStore()),
	}
	c.annotator.CAPI, c.annotator.Writes = d.CAPI, c.machinePoolWrites
	c.queue = controller.NewQueue("machinepool", c.sync)
	c.queue.SeedWith(c.keys)

	c.Registrations, err = controller.Watch(
		controller.Watched{What: "pools", Informer: pools.Informer(), Handler: controller.OnChange(c.poolChanged)},
		controller.Watched{What: "shard groups", Informer: shardGroups.Informer(), Handler: controller.OnChange(c.shardGroupChanged)},
		controller.Watched{What: "NstanceMachines", Informer: nstanceMachines.Informer(), Handler: controller.OnChange(c.nstanceMachineChanged)},
		controller.Watched{What: "MachinePools", Informer: d.Informers.MachinePools, Handler: controller.OnChange(c.machinePoolChanged)},
		controller.Watched{What: "Clusters", Informer: d.Informers.Clusters, Handler: controller.OnChange(c.clusterChanged)},
		controller.Watched{What: "Nodes", Informer: d.Informers.Nodes, Handler: controller.OnChange(c.nodeChanged)},
		controller.Watched{What: "the readiness of Nodes", Informer: d.Informers.Nodes, Handler: controller.OnChange(c.readinessChanged)},
		controller.Watched{What: "requests to replace instances", Informer: d.Informers.Nodes, Indexers: remediationIndexers, Handler: controller.OnChange(c.remediationChanged)},
		controller.Watched{What: "the health of Nodes", Informer: d.Informers.Nodes, Handler: controller.OnChange(c.healthChanged)},
	)
	d.WatchShards(c.shardChanged, c.groupChanged)
	d.Groups.AddHandler(shard.GroupHandler{OnGroup: c.instancesChanged})
	return c, err
}

// Run syncs pools until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }

// pausedBy returns what pauses a pool: its Cluster, itself, or a MachinePool that
// refers to it. It returns "" if nothing does.
func pausedBy(cluster *clusterv1.Cluster, pool *v1beta1.NstanceMachinePool, machinePools []*clusterv1.MachinePool) string {
	for _, machinePool := range machinePools {
		if paused := controllers.PausedBy(cluster, pool, machinePool); paused != "" {
			return paused
		}
	}
	return controllers.PausedBy(cluster, pool)
}

// PausedBy returns what pauses the pool of a shard group, "" if nothing does. Only
// the Cluster pauses a shard group without a pool.
func (c *Controller) PausedBy(group *v1beta1.NstanceShardGroup) (string, error) {
	cluster, err := c.cluster()
	if err != nil {
		return "", err
	}
	pool, err := controller.GetCached(c.poolLister.Get, "pool", c.key(poolOf(group)))
	if err != nil {
		return "", err
	}
	if pool == nil {
		return controllers.PausedBy(cluster), nil
	}
	return pausedBy(cluster, pool, controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, capi.ByPool, pool.Name)), nil
}

// AddPauseHandler adds a handler that is called for each shard group of a pool that
// was paused or unpaused. It must be added before the informers run.
func (c *Controller) AddPauseHandler(handler func(shardGroup cache.ObjectName)) {
	c.pauseHandlers = append(c.pauseHandlers, handler)
}

// cluster returns the Cluster of the pools, nil if it does not exist.
func (c *Controller) cluster() (*clusterv1.Cluster, error) {
	return controller.GetCached(c.clusterLister.Get, "Cluster", c.key(c.clusterName))
}
