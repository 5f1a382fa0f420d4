// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package shardgroup keeps the group on a shard's server equal to the spec of
// its NstanceShardGroup, and the status equal to what the server reports.
package shardgroup

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	informers "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	listers "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

const (
	// workers bound how many shard groups are synced at once. One that waits for
	// a shard's answer must not hold up the others.
	workers = 8
	// rejectedRetry is how long a configuration that a shard refused waits for
	// its next try, unless something changes before.
	rejectedRetry = 5 * time.Minute
	// lostGrace is how long a shard may be away before its groups say so. A
	// server that restarts is back within it, and costs no writes.
	lostGrace = 5 * time.Second
	// staleRetry is how long a sync waits for the cache to show its last write.
	staleRetry = 50 * time.Millisecond
)

// byShard is the index of shard groups by the shard they are on.
const byShard = "shard"

// Shards changes groups on shard servers.
type Shards interface {
	// Has tells whether a shard is configured.
	Has(shard string) bool
	// UpsertGroup makes a group on a shard equal to config, and returns it as it
	// then is.
	UpsertGroup(ctx context.Context, shard, key string, config shard.GroupConfig) (shard.Group, error)
	// DeleteGroup removes a group from a shard. It succeeds when there is none.
	DeleteGroup(ctx context.Context, shard, key string) error
}

// Groups is the cache of what shard servers report.
type Groups interface {
	// Get returns a group of a shard, if the shard has it.
	Get(shard, key string) (shard.Group, bool)
	// HasSynced tells whether the shard's groups are known completely.
	HasSynced(shard string) bool
	// Reachable tells whether the shard is connected, and if not why. No reason
	// means that it is not known yet.
	Reachable(shard string) (bool, error)
	// Observe puts the answer to a call into the cache.
	Observe(shard string, group shard.Group)
}

// Pauses tells what pauses the pool of a shard group, "" when nothing does.
type Pauses interface {
	PausedBy(group *v1beta1.NstanceShardGroup) (string, error)
}

// Drains tells how the drains of Nodes get on.
type Drains interface {
	// Summary counts the instances of a group on a shard that are being drained,
	// and how many of them do not get on; message says why, and is empty when all
	// do.
	Summary(shard, group string) (draining, blocked int, message string)
}

// Controller is the controller of NstanceShardGroups in one namespace.
type Controller struct {
	namespace string
	client    clientset.NstanceShardGroupInterface
	lister    listers.NstanceShardGroupNamespaceLister
	indexer   cache.Indexer
	shards    Shards
	groups    Groups
	pauses    Pauses
	drains    Drains
	recorder  events.EventRecorder
	clock     clock.PassiveClock
	queue     *controller.Queue[cache.ObjectName]
	writes    *controller.Writes

	mu       sync.Mutex
	rejected map[cache.ObjectName]rejection
	// failures are the last words of providers, by shard group.
	failures map[cache.ObjectName]string
}

// New makes the controller and registers its handler with shardGroups, whose
// registration is returned for waiting until it has seen every object.
func New(
	namespace string,
	client clientset.NstanceShardGroupInterface,
	shardGroups informers.NstanceShardGroupInformer,
	shards Shards,
	groups Groups,
	pauses Pauses,
	drains Drains,
	recorder events.EventRecorder,
	clock clock.PassiveClock,
) (*Controller, cache.ResourceEventHandlerRegistration, error) {
	informer := shardGroups.Informer()
	if err := informer.AddIndexers(cache.Indexers{byShard: indexByShard}); err != nil {
		return nil, nil, fmt.Errorf("index shard groups by shard: %w", err)
	}
	c := &Controller{
		namespace: namespace,
		client:    client,
		lister:    shardGroups.Lister().NstanceShardGroups(namespace),
		indexer:   informer.GetIndexer(),
		shards:    shards,
		groups:    groups,
		pauses:    pauses,
		drains:    drains,
		recorder:  recorder,
		clock:     clock,
		writes:    controller.NewWrites(informer.GetStore()),
		rejected:  make(map[cache.ObjectName]rejection),
		failures:  make(map[cache.ObjectName]string),
	}
	c.queue = controller.NewQueue("shardgroup", c.sync)
	registration, err := informer.AddEventHandler(controller.OnChange(c.changed))
	if err != nil {
		return nil, nil, fmt.Errorf("watch shard groups: %w", err)
	}
	return c, registration, nil
}

// Run syncs shard groups until ctx ends.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }

// Wake asks for a sync of a shard group, because its pool was paused or goes on.
func (c *Controller) Wake(shardGroup cache.ObjectName) { c.queue.Add(shardGroup) }

// GroupChanged is to be called when the cache of a shard's groups has changed.
func (c *Controller) GroupChanged(shard, key string) {
	c.queue.AddAfter(c.key(v1beta1.ShardGroupName(key, shard)), controller.BatchPeriod)
}

// DrainsChanged is to be called when what Summary tells of a group has changed.
func (c *Controller) DrainsChanged(shard, group string) {
	c.queue.AddAfter(c.key(v1beta1.ShardGroupName(group, shard)), controller.BatchPeriod)
}

// ShardChanged is to be called when a shard was configured or removed, became
// synced, or when its connection came or went.
func (c *Controller) ShardChanged(shard string) {
	delay := time.Duration(0)
	if reachable, _ := c.groups.Reachable(shard); !reachable {
		delay = lostGrace
	}
	keys, err := c.indexer.IndexKeys(byShard, shard)
	if err != nil {
		// Only an index that was never added gives an error.
		panic(err)
	}
	for _, key := range keys {
		name, err := cache.ParseObjectName(key)
		if err == nil {
			c.queue.AddAfter(name, delay)
		}
	}
}

// changed sees every change of a shard group. A new spec is synced at once. A
// new status is our own, and waking for it would cut short the wait for more
// instances to run; what somebody else writes there is put right by the resync.
func (c *Controller) changed(before, after *v1beta1.NstanceShardGroup) {
	switch {
	case after == nil:
		c.queue.Add(cache.MetaObjectToName(before))
	case before == nil || before.Generation != after.Generation || before.ResourceVersion == after.ResourceVersion ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() || controller.PauseChanged(before, after):
		c.queue.Add(cache.MetaObjectToName(after))
	}
}

func (c *Controller) key(name string) cache.ObjectName {
	return cache.NewObjectName(c.namespace, name)
}

func indexByShard(obj any) ([]string, error) {
	group, ok := obj.(*v1beta1.NstanceShardGroup)
	if !ok {
		return nil, nil
	}
	return []string{string(group.Spec.Shard)}, nil
}
