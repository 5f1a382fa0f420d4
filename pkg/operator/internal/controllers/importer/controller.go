// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package importer creates an NstanceMachinePool for each group that shards have and no pool
// refers to. The MachinePool is then created as for a pool of a user. The importer never
// changes existing objects.
package importer

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
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
	// workers is the number of groups that are synced at once.
	workers = 4
	// importBurst is the number of groups that are imported at once, and importInterval the time
	// after which each further group is: a server that names ever new groups must not fill the
	// API server with pools. All groups of a shard are imported at once.
	importBurst    = shard.MaxGroups
	importInterval = 2 * time.Second
	// importRetry is after what time an import that was too many is tried again.
	importRetry = 20 * time.Second
)

// allGroups is in place of a group in the key for which a sync enqueues every group that the
// shards have. No group has this name.
const allGroups = ""

// changedShards is a queue key: its sync enqueues the groups of changed shards and the groups that
// waited for them. All shards change when an operator starts, and the queue merges equal keys. The
// key of a group has a namespace.
var changedShards = cache.NewObjectName("", "shards")

// DefaultDelay is Options.Delay for servers that read their configuration from a bucket, every 15
// seconds.
const DefaultDelay = 20 * time.Second

// Options are the settings that only this controller has.
type Options struct {
	// Delay is the time between a change and the sync of its group. Servers read their configuration at
	// intervals, each at its own time; a longer delay lets one sync see the same change of all servers.
	Delay time.Duration
}

// Controller imports groups. The keys of its queue are namespace/group, and changedShards.
type Controller struct {
	controller.Registrations

	namespace   string
	clusterName string

	pools            clientset.NstanceMachinePoolInterface
	poolLister       nstancelisters.NstanceMachinePoolNamespaceLister
	clusterLister    listers.ResourceIndexer[*clusterv1.Cluster]
	poolIndex        *controllers.Pools
	shardGroupIndex  *controllers.ShardGroups
	machinePoolIndex cache.Indexer

	shards   shard.Set
	groups   shard.Groups
	recorder events.EventRecorder
	queue    *controller.Queue[cache.ObjectName]
	writes   *controller.WriteTracker
	metrics  *metrics
	// limiter limits the imports.
	limiter *rate.Limiter
	// delay is Options.Delay.
	delay time.Duration

	// waiting are the groups that get a pool or a warning when all shards are known.
	waiting waiting

	// invalidNames are the groups whose invalid names were logged already.
	invalidNames sync.Map
}

// New returns the controller and registers its handlers. Imported pools belong to the Cluster
// d.ClusterName.
func New(d controllers.Dependencies, o Options) (*Controller, error) {
	pools := d.Informers.Nstance.NstanceMachinePools()
	shardGroups := d.Informers.Nstance.NstanceShardGroups()
	poolIndex, err := controllers.NewPools(pools.Informer())
	if err != nil {
		return nil, err
	}
	shardGroupIndex, err := controllers.NewShardGroups(shardGroups.Informer())
	if err != nil {
		return nil, err
	}
	c := &Controller{
		namespace:        d.Namespace,
		clusterName:      d.ClusterName,
		pools:            d.Nstance.NstanceMachinePools(d.Namespace),
		poolLister:       pools.Lister().NstanceMachinePools(d.Namespace),
		clusterLister:    d.Informers.Clusters.Lister(),
		poolIndex:        poolIndex,
		shardGroupIndex:  shardGroupIndex,
		machinePoolIndex: d.Informers.MachinePools.GetIndexer(),
		shards:           d.NamedShards,
		groups:           d.Groups,
		recorder:         d.Recorder,
		writes:           controller.NewWriteTracker(pools.Informer().GetStore()),
		metrics:          newMetrics(d.Metrics),
		limiter:          rate.NewLimiter(rate.Every(importInterval), importBurst),
		delay:            o.Delay,
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

// groupChanged enqueues a group whose cached state on a shard changed.
func (c *Controller) groupChanged(_, key string) { c.queue.AddAfter(c.key(key), c.delay) }

// shardChanged enqueues the groups of a shard, and the groups that wait for it.
func (c *Controller) shardChanged(id string) {
	c.waiting.addShard(id)
	c.queue.AddAfter(changedShards, c.delay)
}

// poolChanged enqueues the group of a pool that was added, changed or deleted, and the group
// whose name a deleted pool had.
func (c *Controller) poolChanged(before, after *v1beta1.NstanceMachinePool) {
	switch {
	case after == nil:
		c.queue.AddAfter(c.key(string(before.Spec.Group)), c.delay)
		c.queue.AddAfter(c.key(before.Name), c.delay)
	case before == nil || before.Generation != after.Generation:
		c.queue.AddAfter(c.key(string(after.Spec.Group)), c.delay)
	}
}

// shardGroupChanged enqueues a group when a shard group of a former pool no longer blocks its import.
func (c *Controller) shardGroupChanged(before, after *v1beta1.NstanceShardGroup) {
	if before != nil && (after == nil || leftover(before) && !leftover(after)) {
		c.queue.AddAfter(c.key(string(before.Spec.Group)), c.delay)
	}
}

// machinePoolChanged enqueues a group that waits for the deletion of a MachinePool.
func (c *Controller) machinePoolChanged(before, after *clusterv1.MachinePool) {
	if before == nil {
		return
	}
	pool := deletedPoolOf(before)
	if pool != "" && (after == nil || deletedPoolOf(after) != pool) {
		c.queue.Add(c.key(pool))
	}
}

// clusterChanged enqueues all groups when the Cluster no longer blocks imports.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	if before != nil && before.Name == c.clusterName && blocksImports(before) && !blocksImports(after) {
		c.queue.Add(c.key(allGroups))
	}
}

// keys returns the keys of all groups that the shards have, some of them repeatedly.
func (c *Controller) keys() []cache.ObjectName {
	var keys []cache.ObjectName
	for _, id := range c.shards.Shards() {
		for _, group := range c.groups.List(id) {
			keys = append(keys, c.key(group.Key))
		}
	}
	return keys
}

// groupsOf returns the groups that a change of a shard may concern: those that it has and no pool
// lists on it, and those that a shard group of a former pool kept from being imported. The
// controllers of pools care for all others.
func (c *Controller) groupsOf(id string) []string {
	var groups []string
	for _, group := range c.groups.List(id) {
		listed := slices.ContainsFunc(c.poolIndex.OfGroup(group.Key), func(pool *v1beta1.NstanceMachinePool) bool {
			return slices.Contains(pool.Spec.Shards, v1beta1.Identifier(id))
		})
		if !listed {
			groups = append(groups, group.Key)
		}
	}
	for _, shardGroup := range c.shardGroupIndex.OfShard(id) {
		if leftover(shardGroup) && len(c.poolIndex.OfGroup(string(shardGroup.Spec.Group))) == 0 {
			groups = append(groups, string(shardGroup.Spec.Group))
		}
	}
	return groups
}

func (c *Controller) key(group string) cache.ObjectName {
	return cache.NewObjectName(c.namespace, group)
}

// deletedPoolOf returns the name of the pool that Cluster API deletes with a MachinePool, ""
// if the MachinePool is not being deleted (docs/capi.md#deletion).
func deletedPoolOf(machinePool *clusterv1.MachinePool) string {
	if machinePool.DeletionTimestamp.IsZero() {
		return ""
	}
	return capi.PoolOf(machinePool)
}

// poolsOf returns the pools of a group, sorted by name.
func (c *Controller) poolsOf(group string) []*v1beta1.NstanceMachinePool {
	pools := c.poolIndex.OfGroup(group)
	slices.SortFunc(pools, func(a, b *v1beta1.NstanceMachinePool) int { return strings.Compare(a.Name, b.Name) })
	return pools
}

// hasDeletedMachinePool reports whether a MachinePool that is being deleted refers to a pool
// of this name.
func (c *Controller) hasDeletedMachinePool(pool string) bool {
	return slices.ContainsFunc(controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, capi.ByPool, pool),
		func(machinePool *clusterv1.MachinePool) bool { return deletedPoolOf(machinePool) != "" })
}

// waiting are the groups that wait until all shards are known.
type waiting struct {
	mu     sync.Mutex
	groups sets.Set[string]
	// shards have changed. Their groups are synced when all shards are known.
	shards sets.Set[string]
}

func (w *waiting) addGroup(group string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.groups == nil {
		w.groups = sets.New[string]()
	}
	w.groups.Insert(group)
}

func (w *waiting) removeGroup(group string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.groups.Delete(group)
}

func (w *waiting) addShard(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shards == nil {
		w.shards = sets.New[string]()
	}
	w.shards.Insert(id)
}

// take returns all groups and shards, which wait no longer.
func (w *waiting) take() (groups, shards []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	groups, shards = sets.List(w.groups), sets.List(w.shards)
	w.groups, w.shards = nil, nil
	return groups, shards
}

type metrics struct {
	imports, delayed prometheus.Counter
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{imports: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "nstance_operator_imports_total",
		Help: "Pools that were created for groups that were on shards.",
	}), delayed: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "nstance_operator_imports_delayed_total",
		Help: "Attempts to import a group that were delayed, because too many groups were imported before.",
	})}
	registry.MustRegister(m.imports, m.delayed)
	return m
}
