// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package drain empties the Node of an instance before its shard deletes the
// instance, and acknowledges the drain to the shard (docs/drains.md).
//
// Each deletion notice of a shard is a key of a queue. A sync takes the next step:
// find the Node, cordon it, list its Pods, evict them, wait until their volumes are
// detached, acknowledge. A step depends only on the notice, the Node and the Pods,
// so another process can continue after any step. A sync does not wait: evictions
// and calls to shards have queues of their own, because they may be rejected or
// take until their deadline.
//
// Which Pods are evicted:
//   - Pods of DaemonSets and mirror Pods stay, so that log and metric agents outlive
//     the workloads. A Pod of a DaemonSet that no longer exists is evicted.
//   - Pods that have finished stay and do not block the drain.
//   - All other Pods are evicted, including Pods without a controller and Pods with
//     emptyDir volumes: they are lost with the machine in any case.
//   - Rules of Cluster API (package drainrule) put Pods in order, and let Pods stay or complete.
//     They count until the time to the deadline is only enough to terminate all Pods.
//   - A Pod that was created after the cordon and tolerates it stays: its replacement would come
//     back to the Node, and would be evicted until the deadline.
//   - Pods that are being deleted are waited for. On a Node that no longer reports
//     (Ready is Unknown) they are waited for until their grace period is over.
//
// A Pod gets its own grace period, or the time until the instance is deleted if
// that is shorter, and at least a second even if the Pod sets 0: otherwise the name
// of the Pod would be free while its containers may still run.
//
// A Node stays cordoned while the notice exists; a Node that a user uncordons is
// cordoned again. The operator annotates the Node with the instance, unless another
// client cordoned it before, and uncordons only Nodes with the annotation when a
// shard withdraws a notice. Drains continue while a Cluster is paused: the shard
// deletes the instance, drained or not.
package drain

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/controller"
	listers "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

const (
	// drainWorkers is the number of drains that are synced at the same time. A sync
	// waits for the API server only.
	drainWorkers = 32
	// evictionWorkers is the number of eviction requests at the same time.
	evictionWorkers = 64
	// shardCallWorkers is the number of calls to one shard at the same time. A call to
	// a shard that hangs takes until its deadline.
	shardCallWorkers = 16
)

// Controller coordinates the drains of all shards.
type Controller struct {
	controller.Registrations
	client    kubernetes.Interface
	nodes     *controllers.Nodes
	nodeIndex cache.Indexer
	volumes   cache.Indexer
	// volumesSynced reports whether volumes is complete.
	volumesSynced func() bool
	rules         *controllers.DrainRules
	// shardGroups are the objects of events about instances without a Node.
	shardGroups listers.NstanceShardGroupNamespaceLister
	shards      shard.Client
	notices     shard.Notices
	recorder    events.EventRecorder
	clock       clock.PassiveClock
	metrics     *metrics

	queue      *controller.Queue[Key]
	shardCalls *controller.Queue[Key]
	evictions  *evictions
	nodeLookup *nodeLookup
	progress   *progress
	writes     *controller.WriteTracker
	podWatches sync.WaitGroup

	mu     sync.Mutex
	states map[Key]*state
	// byProviderID are the keys of states by the key of the provider id of the
	// instance.
	byProviderID map[string]sets.Set[Key]
}

// New returns a controller that has registered its handlers and metrics.
func New(d controllers.Dependencies) (*Controller, error) {
	nodes, err := controllers.NewNodes(&d)
	if err != nil {
		return nil, err
	}
	rules, err := controllers.NewDrainRules(&d)
	if err != nil {
		return nil, err
	}
	metrics := newMetrics(d.Metrics)
	c := &Controller{
		client:        d.Workload.Kube,
		nodes:         nodes,
		nodeIndex:     d.Informers.Nodes.GetIndexer(),
		volumes:       d.Informers.VolumeAttachments.GetIndexer(),
		volumesSynced: d.Informers.VolumeAttachments.HasSynced,
		rules:         rules,
		shardGroups:   d.Informers.Nstance.NstanceShardGroups().Lister().NstanceShardGroups(d.Namespace),
		shards:        d.ShardClient,
		notices:       d.Notices,
		recorder:      d.Recorder,
		clock:         d.Clock,
		metrics:       metrics,
		progress:      newProgress(metrics),
		writes:        controller.NewWriteTracker(d.Informers.Nodes.GetStore()),
		states:        make(map[Key]*state),
		byProviderID:  make(map[string]sets.Set[Key]),
	}
	c.queue = controller.NewQueue("drain", c.sync)
	c.queue.SeedWith(func() []Key { return c.keys(d.Shards.Shards()) })
	c.shardCalls = controller.NewShardQueue("drain-calls", c.callShard, func(key Key) string { return key.Shard }, d.Shards.Has)
	c.evictions = newEvictions(d.Workload.Kube, d.Clock, metrics, c.queue.Add)
	c.nodeLookup = newNodeLookup(d.Workload.Kube, d.Clock, c.queue.AddAfter)
	c.Registrations, err = controller.Watch(
		controller.Watched{What: "Nodes", Informer: d.Informers.Nodes, Indexers: nodeIndexers, Handler: controller.OnChange(c.nodeChanged)},
		controller.Watched{What: "VolumeAttachments", Informer: d.Informers.VolumeAttachments, Indexers: volumeIndexers,
			Handler: controller.OnChange(c.volumeChanged)},
		controller.Watched{What: "MachineDrainRules", Informer: d.Informers.MachineDrainRules, Handler: controller.OnChange(c.ruleChanged)},
		controller.Watched{What: "Machines", Informer: d.Informers.Machines, Handler: controller.OnChange(c.machineChanged)},
	)
	if err != nil {
		return nil, err
	}
	d.Shards.AddHandler(func(shard string) {
		if !d.Shards.Has(shard) {
			c.shardCalls.DropShard(shard)
		}
		c.shardChanged(shard)
	})
	d.Groups.AddHandler(shard.GroupHandler{OnShard: c.shardChanged})
	d.Notices.AddHandler(shard.NoticeHandler{OnInstance: c.noticeChanged, OnShard: c.shardChanged})
	return c, nil
}

// Run coordinates drains until ctx is done, and returns when everything that it
// started has stopped.
func (c *Controller) Run(ctx context.Context) {
	var queues sync.WaitGroup
	queues.Go(func() { c.queue.Run(ctx, drainWorkers) })
	queues.Go(func() { c.shardCalls.Run(ctx, shardCallWorkers) })
	queues.Go(func() { c.evictions.queue.Run(ctx, evictionWorkers) })
	// One list at a time: drains that need a list in the meantime share the next list.
	queues.Go(func() { c.nodeLookup.queue.Run(ctx, 1) })
	queues.Wait()
	c.podWatches.Wait()
}

// Times of a drain. If the caches of a sync are older than its last write, the sync is repeated
// after controller.StaleRetry.
const (
	// cordonTimeout is the time after which a cordon is applied again if the cache
	// does not show it.
	cordonTimeout = time.Second

	// nodeListDelay is the time between the first request for a list of all Nodes and
	// the list. Notices arrive in bursts, and one list serves all notices of a burst.
	nodeListDelay = 50 * time.Millisecond
	// nodeCacheDelay is the time in which the cache is expected to show a Node that a
	// live list contains.
	nodeCacheDelay = time.Second
	// nodeNotFoundTTL is the time for which it counts that a live list did not contain
	// the Node. If the shard cannot be reached for longer, the Nodes are listed again.
	nodeNotFoundTTL = time.Minute

	// unidentifiedNodeTimeout is the time for which a Node without a provider id may belong
	// to an instance without a Node: its provider id may be set later.
	unidentifiedNodeTimeout = time.Minute
	// unidentifiedNodePeriod is the time between two lists while there is such a Node.
	unidentifiedNodePeriod = 5 * time.Second
	// otherNodePeriod is the time between two lists while a Node with another provider id may
	// be the Node of an instance.
	otherNodePeriod = 30 * time.Second

	// podListPeriod is the minimum time between two lists of the Pods of a Node. The
	// watch shows most changes within it, and a workload may create Pods one after
	// the other.
	podListPeriod = time.Second

	// unreadablePeriod is the time between two lists of Pods while DaemonSets cannot be read.
	unreadablePeriod = 5 * time.Second

	// evictionTimeout limits an attempt. The API server may answer 429 with Retry-After: 10,
	// after which client-go repeats the request by itself; the next attempt is due earlier
	// (https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/).
	evictionTimeout = 4 * time.Second
	// blockedAfter is the time for which all evictions of a Pod, or other requests, fail
	// before the drain counts as blocked. Most disruption budgets allow a Pod within it. A Pod that is
	// being deleted has as long after its grace period: its kubelet kills it then.
	blockedAfter = 15 * time.Second

	// minGracePeriod is the minimum grace period. With a grace period of 0 the name of
	// the Pod would be free while its containers may still run.
	minGracePeriod = time.Second
	// defaultGracePeriod is the default of terminationGracePeriodSeconds
	// (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination).
	defaultGracePeriod = 30 * time.Second

	// evictionMargin is the time before the deadline, beside the longest grace period, from which
	// rules no longer delay evictions. A disruption budget may reject the first attempts.
	evictionMargin = 30 * time.Second

	// volumeTimeout is the maximum time that an acknowledgement waits for the volumes
	// of evicted Pods to be detached. A detachment that fails must not block the
	// shard until the deadline of the drain.
	volumeTimeout = 2 * time.Minute

	// errorPeriod is the minimum time between two changes of the reported error of a drain.
	errorPeriod = time.Minute

	// withdrawalPeriod is the time between two queries of an instance whose shard has
	// withdrawn the notice and still reports that the instance will be deleted.
	withdrawalPeriod = 10 * time.Second

	// minRequeue is the delay of a sync that is due already.
	minRequeue = time.Millisecond
)

var (
	// evictionBackoff is the time between the starts of two attempts to evict a Pod:
	// 1 s, 2 s, then 4 s. No Pod is attempted twice within a second, and a Pod is
	// evicted at most 5 s after its budget allows it. The jitter spreads Pods whose
	// evictions were rejected at the same time.
	evictionBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Steps: 8, Cap: 4 * time.Second, Jitter: 0.25}
	// acknowledgementBackoff is the time between two attempts to acknowledge a drain:
	// 1 s to 16 s. Each attempt lists the Pods of the Node.
	acknowledgementBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Steps: 8, Cap: 16 * time.Second}
)
