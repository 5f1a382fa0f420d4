// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package shardgroup keeps the group on a shard's server equal to the spec of its
// NstanceShardGroup, and the status equal to what the server reports.
package shardgroup

import (
	"context"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/controller"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	nstancelisters "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

const (
	// workers is the number of shard groups of one shard that are synced at once.
	workers = 4
	// rejectedRetry is the delay before a rejected configuration is sent again, unless
	// something changes before.
	rejectedRetry = 5 * time.Minute
	// listedRetry is the delay until a deletion is looked at again whose list is awaited.
	listedRetry = 200 * time.Millisecond
	// unclearRetry is the delay before a request is sent again that was either rejected or
	// lost.
	unclearRetry = 5 * time.Second
	// deletionSettles is the delay after which a group that a shard still reports after
	// its deletion is the group of another object. It is longer than the time between
	// two lists of the groups, so that the cache is newer than the deletion.
	deletionSettles = 2 * time.Minute
)

// pauseHandler receives the shard groups of a pool that was paused or resumed.
type pauseHandler = func(shardGroup cache.ObjectName)

// Options are what the controller needs of other controllers.
type Options struct {
	// Pools report whether the pool of a shard group is paused.
	Pools interface {
		// PausedBy returns what pauses the pool, "" when nothing does.
		PausedBy(group *v1beta1.NstanceShardGroup) (string, error)
		// Writer returns who wrote settings of the pool last, "" if that is not known.
		Writer(ctx context.Context, group *v1beta1.NstanceShardGroup, settings ...string) string
		AddPauseHandler(handler pauseHandler)
	}
	// Drains report the progress of drains.
	Drains interface {
		// Summary returns how many instances of a group on a shard are being drained and
		// how many of these drains are blocked. The message is empty when none is.
		Summary(shard, group string) (draining, blocked int, message string)
		AddHandler(handler func(shard, group, instance string))
	}
}

// Controller is the controller of NstanceShardGroups in one namespace.
type Controller struct {
	controller.Registrations

	namespace string
	client    clientset.NstanceShardGroupInterface
	lister    nstancelisters.NstanceShardGroupNamespaceLister
	indexer   cache.Indexer
	shards    shard.Set
	calls     shard.Client
	groups    shard.Groups
	notices   shard.Notices
	options   Options
	recorder  events.EventRecorder
	clock     clock.PassiveClock
	queue     *controller.Queue[cache.ObjectName]
	writes    *controller.WriteTracker
	metrics   *metrics

	mu         sync.Mutex
	rejections map[cache.ObjectName]rejection
	// unclear are the last replies for which shard.IsUnclear.
	unclear map[cache.ObjectName]rejection
	// failures are the errors of providers, by shard group.
	failures map[cache.ObjectName]providerErrors
	// deletions are the first deletions that a shard has confirmed although it still
	// reports a group of another revision.
	deletions map[cache.ObjectName]deletion
	// unlisted are the deletions that a list of the groups has not confirmed.
	unlisted map[cache.ObjectName]unlisted
	// accepted are the objects whose deletion the shards have accepted.
	accepted map[cache.ObjectName]types.UID
	// sent is what the shards have accepted.
	sent map[cache.ObjectName]sent
}

// New returns the controller and registers its handlers.
func New(d controllers.Dependencies, o Options) (*Controller, error) {
	shardGroups := d.Informers.Nstance.NstanceShardGroups()
	c := &Controller{
		namespace:  d.Namespace,
		client:     d.Nstance.NstanceShardGroups(d.Namespace),
		lister:     shardGroups.Lister().NstanceShardGroups(d.Namespace),
		indexer:    shardGroups.Informer().GetIndexer(),
		shards:     d.Shards,
		calls:      d.ShardClient,
		groups:     d.Groups,
		notices:    d.Notices,
		options:    o,
		recorder:   d.Recorder,
		clock:      d.Clock,
		writes:     controller.NewWriteTracker(shardGroups.Informer().GetStore()),
		metrics:    newMetrics(d.Metrics),
		rejections: make(map[cache.ObjectName]rejection),
		unclear:    make(map[cache.ObjectName]rejection),
		failures:   make(map[cache.ObjectName]providerErrors),
		deletions:  make(map[cache.ObjectName]deletion),
		unlisted:   make(map[cache.ObjectName]unlisted),
		accepted:   make(map[cache.ObjectName]types.UID),
		sent:       make(map[cache.ObjectName]sent),
	}
	c.queue = controller.NewShardQueue("shardgroup", c.sync, shardOf)
	c.queue.SeedWith(c.keys)

	var err error
	c.Registrations, err = controller.Watch(
		controller.Watched{What: "shard groups", Informer: shardGroups.Informer(), Indexers: indexers, Handler: controller.OnChange(c.shardGroupChanged)},
	)
	d.Shards.AddHandler(c.shardChanged)
	d.Groups.AddHandler(shard.GroupHandler{OnGroup: c.groupChanged, OnShard: c.shardChanged, OnError: c.errorReported})
	d.Notices.AddHandler(shard.NoticeHandler{OnShard: c.drainsReported})
	o.Pools.AddPauseHandler(c.queue.Add)
	o.Drains.AddHandler(c.drainsChanged)
	return c, err
}

// shardOf returns the shard of a shard group, which is the end of its name.
func shardOf(key cache.ObjectName) string {
	_, id, _ := strings.Cut(key.Name, identifier.Separator)
	return id
}

// Run syncs shard groups until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }
