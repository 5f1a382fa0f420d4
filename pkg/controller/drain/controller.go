// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package drain empties the Node of an instance that its shard is about to
// delete, and tells the shard when that is done.
//
// Each notice of a shard becomes a key of a queue. A sync takes the one step that
// is next: find the Node, cordon it, look at its Pods, have them evicted, wait for
// their volumes, acknowledge. What a sync needs is in the notice, the Node and the
// Pods, so that another process can go on after any step. Nothing in it waits:
// evictions and calls to shards, which may be refused or hang, have queues of
// their own.
//
// Which Pods leave:
//   - Pods of DaemonSets and mirror Pods stay; so log and metric agents outlive
//     the workloads. A Pod of a DaemonSet that no longer exists is evicted.
//   - Pods that have finished stay and hold up nothing.
//   - All others are evicted: Pods that nothing will replace, and Pods with emptyDir
//     volumes, too. The machine goes, and they with it.
//   - Pods that are being deleted already are waited for. On a Node that has not
//     been heard of (Ready is Unknown) only until their grace period is over.
//
// A Pod gets its own grace period, or the time that is left until the instance is
// deleted if that is shorter, and never less than a second, whatever the Pod asks
// for: with none, its name would be free while its containers may still run.
//
// A Node is cordoned for as long as the notice stands, also against somebody who
// uncordons it. It is marked with the instance unless somebody else has cordoned
// it before, and only a Node with the mark is uncordoned when a shard withdraws a
// notice. A paused Cluster changes nothing here: the machine is deleted by its
// shard, drained or not.
package drain

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/providerid"
	"nstance.dev/operator/pkg/shard"
)

const (
	// workers sync drains. They wait for nothing but the API server.
	workers = 32
	// callers ask and tell one shard. Each shard has its own: a call to one that
	// hangs takes until its deadline.
	callers = 16
)

// Shards are the calls to shard servers.
type Shards interface {
	// AcknowledgeDrained tells a shard that the Node of an instance is drained.
	AcknowledgeDrained(ctx context.Context, shard, id string) error
	// Instance asks a shard for one instance.
	Instance(ctx context.Context, shard, id string) (shard.Instance, error)
}

// Notices is the cache of what shards tell of the end of instances.
type Notices interface {
	// Get returns the notice about an instance, if there is one.
	Get(shard, id string) (shard.Notice, bool)
	// List returns the notices of a shard.
	List(shard string) []shard.Notice
	// Settled tells whether a notice that is not there is not there on the shard
	// either.
	Settled(shard string) bool
}

// Controller coordinates the drains of all shards. A key is the shard and the id
// of an instance.
type Controller struct {
	client    kubernetes.Interface
	nodes     *controller.Nodes
	nodeIndex cache.Indexer
	volumes   cache.Indexer
	shards    Shards
	notices   Notices
	recorder  events.EventRecorder
	clock     clock.PassiveClock
	queue     *controller.Queue[cache.ObjectName]
	calls     *calls
	evictions *evictions
	lookups   *lookups
	progress  *progress
	writes    *controller.Writes
	watches   sync.WaitGroup

	mu      sync.Mutex
	records map[cache.ObjectName]*record
	// byMachine are the keys of records by the key of the instance's provider id.
	byMachine map[string]sets.Set[cache.ObjectName]
}

// New makes the controller and registers its handlers with the informers of Nodes
// and VolumeAttachments, whose registrations are returned for waiting until they
// have seen every object.
func New(
	client kubernetes.Interface,
	nodes, volumeAttachments cache.SharedIndexInformer,
	shards Shards,
	notices Notices,
	recorder events.EventRecorder,
	clock clock.PassiveClock,
) (*Controller, []cache.ResourceEventHandlerRegistration, error) {
	byProviderID, err := controller.NewNodes(nodes)
	if err != nil {
		return nil, nil, err
	}
	c := &Controller{
		client:    client,
		nodes:     byProviderID,
		nodeIndex: nodes.GetIndexer(),
		volumes:   volumeAttachments.GetIndexer(),
		shards:    shards,
		notices:   notices,
		recorder:  recorder,
		clock:     clock,
		progress:  newProgress(),
		writes:    controller.NewWrites(nodes.GetStore()),
		records:   make(map[cache.ObjectName]*record),
		byMachine: make(map[string]sets.Set[cache.ObjectName]),
	}
	c.queue = controller.NewQueue("drain", c.sync)
	c.calls = newCalls(c.call)
	c.evictions = newEvictions(client, clock, c.queue.Add)
	c.lookups = newLookups(client, clock, c.queue.AddAfter)
	registrations, err := controller.Watch(
		controller.Watched{What: "Nodes", Informer: nodes, Indexers: nodeIndexers, Handler: controller.OnChange(c.nodeChanged)},
		controller.Watched{What: "VolumeAttachments", Informer: volumeAttachments, Indexers: volumeIndexers, Handler: controller.OnChange(c.volumeChanged)},
	)
	if err != nil {
		return nil, nil, err
	}
	return c, registrations, nil
}

// Run coordinates drains until ctx ends, and returns when everything that it
// started has ended.
func (c *Controller) Run(ctx context.Context) {
	var queues sync.WaitGroup
	c.calls.start = func(queue *controller.Queue[cache.ObjectName]) {
		queues.Go(func() { queue.Run(ctx, callers) })
	}
	queues.Go(func() { c.queue.Run(ctx, workers) })
	queues.Go(func() { c.evictions.queue.Run(ctx, evictors) })
	// One at a time, so that whoever asks meanwhile shares the next.
	queues.Go(func() { c.lookups.queue.Run(ctx, 1) })
	queues.Wait()
	c.watches.Wait()
}

// InstanceChanged is to be called when the notice about an instance has changed.
func (c *Controller) InstanceChanged(shard, id string) {
	c.queue.Add(cache.NewObjectName(shard, id))
}

// ShardChanged is to be called when Settled of a shard has changed, or its
// connection.
func (c *Controller) ShardChanged(shard string) {
	for _, notice := range c.notices.List(shard) {
		c.queue.Add(cache.NewObjectName(shard, notice.InstanceID))
	}
	for _, node := range controller.Indexed[corev1.Node](c.nodeIndex, byMark, shard) {
		if key, ok := markOf(node); ok {
			c.queue.Add(key)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.records {
		if key.Namespace == shard {
			c.queue.Add(key)
		}
	}
}

// nodeChanged sees every change of a Node, of which there are many that mean
// nothing to a drain.
func (c *Controller) nodeChanged(before, after *corev1.Node) {
	if before != nil && after != nil && before.ResourceVersion != after.ResourceVersion && alike(before, after) {
		return
	}
	for _, node := range []*corev1.Node{before, after} {
		if node != nil {
			c.wake(node)
		}
	}
}

// alike tells whether two states of a Node are the same to a drain.
func alike(before, after *corev1.Node) bool {
	return before.UID == after.UID &&
		before.Spec.ProviderID == after.Spec.ProviderID &&
		before.Spec.Unschedulable == after.Spec.Unschedulable &&
		before.Annotations[v1beta1.AnnotationCordonedFor] == after.Annotations[v1beta1.AnnotationCordonedFor] &&
		unreachable(before) == unreachable(after)
}

// wake asks for a sync of every drain that has to do with a Node: of an instance
// that it may be, and of the one that it was cordoned for.
func (c *Controller) wake(node *corev1.Node) {
	if key, ok := markOf(node); ok {
		c.queue.Add(key)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.byMachine[providerid.Key(node.Spec.ProviderID)] {
		c.queue.Add(key)
	}
}

// volumeChanged sees every change of a VolumeAttachment. Only its end can let a
// drain go on.
func (c *Controller) volumeChanged(before, after *storagev1.VolumeAttachment) {
	if after != nil {
		return
	}
	if object, exists, err := c.nodeIndex.GetByKey(before.Spec.NodeName); err == nil && exists {
		if node, ok := object.(*corev1.Node); ok {
			c.wake(node)
		}
	}
}

// until is the delay of a key that has something to do at moment, 0 for a zero
// moment.
func until(moment, now time.Time) time.Duration {
	if moment.IsZero() {
		return 0
	}
	return max(moment.Sub(now), time.Millisecond)
}

// mark is the value of the annotation that a Node cordoned for key has.
func mark(key cache.ObjectName) string { return key.Namespace + "/" + key.Name }

// markOf is the key that a Node was cordoned for, if it was.
func markOf(node *corev1.Node) (cache.ObjectName, bool) {
	shard, id, ok := strings.Cut(node.Annotations[v1beta1.AnnotationCordonedFor], "/")
	return cache.NewObjectName(shard, id), ok && shard != "" && id != ""
}
