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

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

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
	// listedRetry is the delay before a deletion that waits for a list of groups is reviewed.
	listedRetry = 200 * time.Millisecond
	// unclearRetry is the delay before a request that was either rejected or lost is sent
	// again.
	unclearRetry = 5 * time.Second
	// deletionSettles is the delay after which a group that a shard still reports after its
	// deletion belongs to another object. It is longer than the time between two lists of the
	// groups, so that the cache is newer than the deletion.
	deletionSettles = 2 * time.Minute
)

// pauseHandler is called with each shard group of a pool that was paused or unpaused.
type pauseHandler = func(shardGroup cache.ObjectName)

// Options are the dependencies that only this controller has.
type Options struct {
	// Pools has the pools of shard groups.
	Pools interface {
		// PausedBy returns what pauses the pool, "" if it is not paused.
		PausedBy(group *v1beta1.NstanceShardGroup) (string, error)
		// Writer returns who last wrote these settings of the pool, "" if unknown.
		Writer(ctx context.Context, group *v1beta1.NstanceShardGroup, settings ...string) string
		// Wants reports whether a pool that does not own a shard group, and is not being
		// deleted, has its shard and group, as the API server has it.
		Wants(ctx context.Context, group *v1beta1.NstanceShardGroup) (bool, error)
		AddPauseHandler(handler pauseHandler)
	}
	// Drains reports the progress of drains.
	Drains interface {
		// Summary returns how many instances of a group on a shard are being drained, how
		// many of these drains are blocked, and the entries of status.blockedDrains.
		Summary(shard, group string) (draining, blocked int, list []v1beta1.BlockedDrain)
		// Waiting returns what drains that are not blocked wait for, as sentences.
		Waiting(shard, group string) []string
		AddHandler(handler func(shard, group, instance string))
	}
}

// Controller syncs the NstanceShardGroups of one namespace.
type Controller struct {
	controller.Registrations

	namespace string
	client    clientset.NstanceShardGroupInterface
	lister    nstancelisters.NstanceShardGroupNamespaceLister
	index     *controllers.ShardGroups
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
	// unclear are the last errors for which shard.IsUnclear is true.
	unclear map[cache.ObjectName]rejection
	// failures are the errors of providers, by shard group.
	failures map[cache.ObjectName]providerErrors
	// deletions are the first deletions that a shard has confirmed although it still reports a
	// group of another revision.
	deletions map[cache.ObjectName]deletion
	// unlisted are the deletions that are not confirmed by a list of the groups yet.
	unlisted map[cache.ObjectName]unlisted
	// accepted are the UIDs of objects whose deletion the shards have accepted.
	accepted map[cache.ObjectName]types.UID
	// sent has the last request that each shard has accepted.
	sent map[cache.ObjectName]sent
}

// New returns the controller and registers its handlers.
func New(d controllers.Dependencies, o Options) (*Controller, error) {
	shardGroups := d.Informers.Nstance.NstanceShardGroups()
	index, err := controllers.NewShardGroups(shardGroups.Informer())
	if err != nil {
		return nil, err
	}
	c := &Controller{
		namespace:  d.Namespace,
		client:     d.Nstance.NstanceShardGroups(d.Namespace),
		lister:     shardGroups.Lister().NstanceShardGroups(d.Namespace),
		index:      index,
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
	c.queue = controller.NewShardQueue("shardgroup", c.sync, shardOf, d.Shards.Has)
	c.queue.SeedWith(c.keys)

	c.Registrations, err = controller.Watch(
		controller.Watched{What: "shard groups", Informer: shardGroups.Informer(), Handler: controller.OnChange(c.shardGroupChanged)},
	)
	d.Shards.AddHandler(c.shardChanged)
	d.Groups.AddHandler(shard.GroupHandler{OnGroup: c.groupChanged, OnShard: c.shardChanged, OnError: c.errorReported})
	d.Notices.AddHandler(shard.NoticeHandler{OnShard: c.drainsReported})
	o.Pools.AddPauseHandler(c.queue.Add)
	o.Drains.AddHandler(c.drainsChanged)
	return c, err
}

// shardOf returns the shard of a shard group, the last part of its name.
func shardOf(key cache.ObjectName) string {
	_, id, _ := strings.Cut(key.Name, identifier.Separator)
	return id
}

// Run syncs shard groups until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }

// shardGroupChanged enqueues a shard group at once for a new spec. It ignores the status,
// which only this controller writes: a sync for it would cut short the delay that batches the
// changes of instances. The resync reverts changes of the status by other clients.
func (c *Controller) shardGroupChanged(before, after *v1beta1.NstanceShardGroup) {
	switch {
	case after == nil:
		c.queue.Add(cache.MetaObjectToName(before))
	case before == nil || before.Generation != after.Generation || before.ResourceVersion == after.ResourceVersion ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() || controllers.PauseChanged(before, after) ||
		before.Annotations[v1beta1.AnnotationConfirmOverwrite] != after.Annotations[v1beta1.AnnotationConfirmOverwrite] ||
		before.Annotations[v1beta1.AnnotationConfirmAbandon] != after.Annotations[v1beta1.AnnotationConfirmAbandon]:
		c.queue.Add(cache.MetaObjectToName(after))
	}
}

// groupChanged enqueues the shard group of a cached group that changed.
func (c *Controller) groupChanged(shard, key string) {
	c.queue.AddAfter(c.key(v1beta1.ShardGroupName(key, shard)), controller.BatchPeriod)
}

// drainsChanged enqueues the shard group of an instance whose drain made progress.
func (c *Controller) drainsChanged(shard, group, _ string) { c.groupChanged(shard, group) }

// drainsReported enqueues the shard groups with drains, after a shard has reported all its
// drains.
func (c *Controller) drainsReported(id string) {
	if !c.notices.Settled(id) {
		return
	}
	for _, group := range c.index.OfShard(id) {
		if ptr.Deref(group.Status.DrainingReplicas, 0) > 0 {
			c.queue.AddAfter(cache.MetaObjectToName(group), controller.BatchPeriod)
		}
	}
}

// shardChanged enqueues the shard groups of a shard: at once when it is reachable,
// and otherwise after a grace period in which it may be back.
func (c *Controller) shardChanged(id string) {
	c.metrics.setShard(id, c.shards.Has(id))
	if !c.shards.Has(id) {
		c.queue.DropShard(id)
	}
	delay := time.Duration(0)
	if reachable, _ := c.groups.Reachable(id); !reachable {
		delay = controllers.LostGrace
	}
	for _, group := range c.index.OfShard(id) {
		c.queue.AddAfter(cache.MetaObjectToName(group), delay)
	}
}

// keys returns the keys of all shard groups.
func (c *Controller) keys() []cache.ObjectName {
	shardGroups, err := c.lister.List(labels.Everything())
	if err != nil {
		// The lister of a cache returns no errors.
		panic(err)
	}
	keys := make([]cache.ObjectName, len(shardGroups))
	for i, shardGroup := range shardGroups {
		keys[i] = cache.MetaObjectToName(shardGroup)
	}
	return keys
}

func (c *Controller) key(name string) cache.ObjectName {
	return cache.NewObjectName(c.namespace, name)
}

type metrics struct {
	corrections *prometheus.CounterVec
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{corrections: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nstance_operator_drift_corrections_total",
		Help: "Groups that were sent to their shard again although their shard group had not changed, because another writer has changed the group or the shard has lost it, by shard.",
	}, []string{"shard"})}
	registry.MustRegister(m.corrections)
	return m
}

// setShard creates the series of a configured shard and deletes the series of any other. A
// counter starts at 0, because Prometheus cannot compute an increase from a missing value.
func (m *metrics) setShard(id string, configured bool) {
	if configured {
		m.corrections.WithLabelValues(id)
	} else {
		m.corrections.DeleteLabelValues(id)
	}
}
