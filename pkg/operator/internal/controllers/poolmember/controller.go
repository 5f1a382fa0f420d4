// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package poolmember creates an NstanceMachine for each instance of a pool whose instances
// have Machines, and deletes the Machines of instances that a scale-down has selected. Cluster
// API creates the Machine of an NstanceMachine, and deletes the NstanceMachine with its
// Machine (docs/capi.md#machines).
package poolmember

import (
	"cmp"
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
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
	"nstance.dev/operator/pkg/operator/shard"
)

const (
	// workers is the number of pools that are synced concurrently.
	workers = 4
	// orphanGrace is how long a Machine must be without its NstanceMachine before it is
	// deleted. The two caches may differ in age.
	orphanGrace = 10 * time.Second
)

// Controller syncs the NstanceMachines of the pools in one namespace. The keys of its queue
// are the keys of pools.
type Controller struct {
	controller.Registrations

	cluster cache.ObjectName

	nstanceMachines clientset.NstanceMachineInterface
	shardGroups     clientset.NstanceShardGroupInterface
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
		shardGroups:          d.Nstance.NstanceShardGroups(d.Namespace),
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

// shardChanged enqueues the pools of a shard that was configured or removed, became
// synced, or whose connection changed.
func (c *Controller) shardChanged(shard string) {
	for _, pool := range c.poolIndex.OfShard(shard) {
		c.queue.AddAfter(cache.MetaObjectToName(pool), controller.BatchPeriod)
	}
}

// groupChanged enqueues the pools of a cached group that has instances which never had an
// NstanceMachine. Other changes of instances are ignored.
func (c *Controller) groupChanged(shard, key string) {
	reported, _ := c.groups.Get(shard, key)
	for _, pool := range c.poolIndex.OfGroup(key) {
		if !slices.Contains(pool.Spec.Shards, v1beta1.Identifier(shard)) {
			continue
		}
		if pool.Status.InfrastructureMachineKind != "" && c.states.anyNew(pool.UID, reported.Instances) {
			c.queue.AddAfter(cache.MetaObjectToName(pool), controller.BatchPeriod)
		}
	}
}

// poolChanged enqueues a pool after a change that affects its NstanceMachines. Provider ids
// and most of the status change with every instance and are ignored.
func (c *Controller) poolChanged(before, after *v1beta1.NstanceMachinePool) {
	switch {
	case after == nil:
		c.states.drop(before.UID)
	case before == nil || before.ResourceVersion == after.ResourceVersion ||
		before.UID != after.UID || deleting(before) != deleting(after) || controllers.PauseChanged(before, after) ||
		before.Status.InfrastructureMachineKind != after.Status.InfrastructureMachineKind ||
		!slices.Equal(before.Spec.Shards, after.Spec.Shards):
		c.queue.Add(cache.MetaObjectToName(after))
	}
}

// shardGroupChanged enqueues the pool of a shard group that is new, is being deleted, has another
// owner, or has other selected instances.
func (c *Controller) shardGroupChanged(before, after *v1beta1.NstanceShardGroup) {
	if after == nil || before != nil && slices.Equal(before.Spec.RemoveFirst, after.Spec.RemoveFirst) && before.Spec.Shard == after.Spec.Shard &&
		before.Spec.Group == after.Spec.Group && deleting(before) == deleting(after) && equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences) {
		return
	}
	for _, group := range []*v1beta1.NstanceShardGroup{before, after} {
		if group == nil {
			continue
		}
		if owner := controllers.PoolOwning(group); owner != nil {
			c.queue.Add(c.key(owner.Name))
		}
	}
}

// nstanceMachineChanged records which instances of a pool have or had an NstanceMachine, and
// enqueues the pool when an NstanceMachine was created or deleted.
func (c *Controller) nstanceMachineChanged(before, after *v1beta1.NstanceMachine) {
	if before != nil && after != nil && before.UID == after.UID {
		return
	}
	nstanceMachine := cmp.Or(after, before)
	pool := controllers.PoolOf(nstanceMachine)
	if pool == nil {
		return
	}
	instanceID := nstanceMachine.Name
	shard, group := string(nstanceMachine.Spec.Shard), string(nstanceMachine.Spec.GroupRef.Name)
	// A listed instance without a record would get an NstanceMachine (planCreation). The record
	// of a deleted NstanceMachine therefore stays until the shard no longer lists the instance.
	if after == nil && !c.ids(shard, group).Has(instanceID) {
		c.states.dropInstances(pool.UID, func(id, _ string) bool { return id == instanceID })
	} else {
		c.states.addInstance(pool.UID, instanceID, shard)
	}
	c.queue.AddAfter(c.key(pool.Name), controller.BatchPeriod)
}

// machineChanged enqueues the pool of a Machine that was created or deleted, or that refers to
// another pool or NstanceMachine, because its NstanceMachine may not exist, and of a Machine that became unhealthy, or was unpaused and
// may now be replaced.
func (c *Controller) machineChanged(before, after *clusterv1.Machine) {
	if before != nil && after != nil && before.UID == after.UID && poolName(before) == poolName(after) &&
		before.Spec.InfrastructureRef == after.Spec.InfrastructureRef && unhealthy(before) == unhealthy(after) && !controllers.PauseChanged(before, after) {
		return
	}
	for _, machine := range []*clusterv1.Machine{before, after} {
		if machine != nil {
			c.enqueueMachine(machine)
		}
	}
}

// enqueueMachine enqueues the pool of the MachinePool that a Machine names, and the pool of the
// NstanceMachine to which the Machine refers.
func (c *Controller) enqueueMachine(machine *clusterv1.Machine) {
	name := poolName(machine)
	if name == "" {
		return
	}
	for _, machinePool := range controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, byPoolName, name) {
		if pool := capi.PoolOf(machinePool); pool != "" {
			c.queue.AddAfter(c.key(pool), controller.BatchPeriod)
		}
	}
	if nstanceMachine, err := c.nstanceMachineLister.Get(machine.Spec.InfrastructureRef.Name); err == nil && controllers.PoolOf(nstanceMachine) != nil {
		c.queue.AddAfter(c.key(controllers.PoolOf(nstanceMachine).Name), controller.BatchPeriod)
	}
}

// machinePoolChanged enqueues the pool that a MachinePool refers to when the MachinePool
// is created, paused, unpaused or deleted.
func (c *Controller) machinePoolChanged(before, after *clusterv1.MachinePool) {
	if before != nil && after != nil && before.UID == after.UID && deleting(before) == deleting(after) &&
		!controllers.PauseChanged(before, after) && capi.PoolOf(before) == capi.PoolOf(after) {
		return
	}
	for _, machinePool := range []*clusterv1.MachinePool{before, after} {
		if machinePool == nil {
			continue
		}
		if pool := capi.PoolOf(machinePool); pool != "" {
			c.queue.Add(c.key(pool))
		}
	}
}

// clusterChanged enqueues every pool when the Cluster is paused or unpaused.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	if clusterPaused(before) == clusterPaused(after) {
		return
	}
	for _, pool := range c.pools() {
		c.queue.Add(cache.MetaObjectToName(pool))
	}
}

func clusterPaused(cluster *clusterv1.Cluster) bool {
	return cluster != nil && controllers.PausedBy(cluster) != ""
}

// keys returns the keys of all pools.
func (c *Controller) keys() []cache.ObjectName {
	pools := c.pools()
	keys := make([]cache.ObjectName, len(pools))
	for i, pool := range pools {
		keys[i] = cache.MetaObjectToName(pool)
	}
	return keys
}

func (c *Controller) pools() []*v1beta1.NstanceMachinePool {
	pools, err := c.poolLister.List(labels.Everything())
	if err != nil {
		// A lister of a cache returns no errors.
		panic(err)
	}
	return pools
}

func (c *Controller) key(name string) cache.ObjectName {
	return cache.NewObjectName(c.cluster.Namespace, name)
}

// byPoolName indexes Machines by the label that names their MachinePool, and MachinePools by
// the value that this label has for them. Indexes of other controllers in the same caches must
// have other names.
const byPoolName = "poolmember.poolName"

var (
	machineIndexers = cache.Indexers{byPoolName: func(obj any) ([]string, error) {
		if machine, ok := obj.(*clusterv1.Machine); ok {
			if name := poolName(machine); name != "" {
				return []string{name}, nil
			}
		}
		return nil, nil
	}}

	machinePoolIndexers = cache.Indexers{byPoolName: func(obj any) ([]string, error) {
		if machinePool, ok := obj.(*clusterv1.MachinePool); ok {
			return []string{capi.LabelValue(machinePool.Name)}, nil
		}
		return nil, nil
	}}
)

// poolName returns the label that names the MachinePool of a Machine with an NstanceMachine,
// "" for any other Machine.
func poolName(machine *clusterv1.Machine) string {
	if capi.NstanceMachineOf(machine) == "" {
		return ""
	}
	return machine.Labels[clusterv1.MachinePoolNameLabel]
}
