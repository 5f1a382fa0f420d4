// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package ondemand creates a machine for each Pod that requests a machine by annotation, and
// deletes it when the Pod was deleted or has finished. A machine is a pair of a Machine and an
// NstanceMachine. The controller never changes other objects, such as Pods.
package ondemand

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/metadata"
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
	// workers is the number of Pods that are synced at once.
	workers = 8
	// staleRetry is the delay of a sync whose caches are older than its last write. It is
	// longer than controller.StaleRetry, because the change in the cache usually enqueues the
	// Pod earlier.
	staleRetry = time.Second
	// existingPodRetry is the delay before a pair is checked again whose Pod exists but no
	// longer requests it.
	existingPodRetry = 5 * time.Minute
)

// allWaiting replaces the UID in a queue key: the sync of that key enqueues all Pods without a machine.
// All shards change when an operator starts, and the queue merges equal keys: so the Pods are not
// visited once for each shard. No Pod has this UID.
const allWaiting types.UID = ""

// Options are the settings that only this controller has.
type Options struct {
	// Limit is the maximum number of machines for the Pods of one namespace that name one
	// group, 0 for no limit.
	Limit int
	// DrainTimeout is how long the drain of a machine may take, and then the detachment of its
	// volumes, 0 for no limit.
	DrainTimeout time.Duration
	// Only Pods in Namespaces may request machines, AllNamespaces alone for all, and only of
	// Groups, an empty list for all.
	Namespaces, Groups []string
}

// Controller creates and deletes the machines of Pods. The keys of its queue are UIDs of Pods:
// a Pod that is created again with the same name is another Pod, and gets another machine.
type Controller struct {
	controller.Registrations

	namespace   string
	clusterName string

	podClient            metadata.Interface
	machines             *capi.MachineClient
	nstanceMachines      clientset.NstanceMachineInterface
	machineLister        listers.ResourceIndexer[*clusterv1.Machine]
	nstanceMachineLister nstancelisters.NstanceMachineNamespaceLister
	clusterLister        listers.ResourceIndexer[*clusterv1.Cluster]
	podIndex             cache.Indexer
	machineIndex         cache.Indexer
	nstanceMachineIndex  cache.Indexer
	podsSynced           func() bool
	shards               shard.Set
	groups               shard.Groups
	recorder             events.EventRecorder
	queue                *controller.Queue[types.UID]
	machineWrites        *controller.WriteTracker
	nstanceMachineWrites *controller.WriteTracker
	limiter              *limiter
	metrics              *metrics
	rejections           rejections
	drainTimeout         time.Duration
	allowed              allowed
}

// New returns the controller and registers its handlers. d.Informers.Pods must come from
// NewPodInformer.
func New(d controllers.Dependencies, o Options) (*Controller, error) {
	pods, machines := d.Informers.Pods, d.Informers.Machines
	nstanceMachines := d.Informers.Nstance.NstanceMachines()
	c := &Controller{
		namespace:            d.Namespace,
		clusterName:          d.ClusterName,
		podClient:            d.Workload.Metadata,
		machines:             d.CAPI.Machines(d.Namespace),
		nstanceMachines:      d.Nstance.NstanceMachines(d.Namespace),
		machineLister:        machines.Lister(),
		nstanceMachineLister: nstanceMachines.Lister().NstanceMachines(d.Namespace),
		clusterLister:        d.Informers.Clusters.Lister(),
		podIndex:             pods.GetIndexer(),
		machineIndex:         machines.GetIndexer(),
		nstanceMachineIndex:  nstanceMachines.Informer().GetIndexer(),
		podsSynced:           pods.HasSynced,
		shards:               d.Shards,
		groups:               d.Groups,
		recorder:             d.Recorder,
		machineWrites:        controller.NewWriteTracker(machines.GetStore()),
		nstanceMachineWrites: controller.NewWriteTracker(nstanceMachines.Informer().GetStore()),
		limiter:              newLimiter(o.Limit, nstanceMachines.Informer().GetIndexer()),
		metrics:              newMetrics(d.Metrics),
		drainTimeout:         o.DrainTimeout,
		allowed:              allowed{namespaces: sets.New(o.Namespaces...), groups: sets.New(o.Groups...)},
	}
	c.queue = controller.NewQueue("ondemand", c.sync)
	c.queue.SeedWith(c.keys)
	var err error
	c.Registrations, err = controller.Watch(
		controller.Watched{What: "Pods", Informer: pods, Handler: controller.OnChange(c.podChanged)},
		controller.Watched{What: "NstanceMachines", Informer: nstanceMachines.Informer(), Indexers: slotIndexers, Handler: controller.OnChange(c.nstanceMachineChanged)},
		controller.Watched{What: "Machines", Informer: machines, Handler: controller.OnChange(c.machineChanged)},
		controller.Watched{What: "Clusters", Informer: d.Informers.Clusters, Handler: controller.OnChange(c.clusterChanged)},
	)
	if err != nil {
		return nil, err
	}
	d.WatchShards(c.shardChanged, c.groupChanged)
	return c, nil
}

// Run creates and deletes machines until ctx is done. It begins when the cache of Pods is
// complete, because the operator may start without the API server of the Pods.
func (c *Controller) Run(ctx context.Context) {
	if cache.WaitForCacheSync(ctx.Done(), c.podsSynced) {
		c.queue.Run(ctx, workers)
	}
}

// pod returns the Pod with a UID, nil if it is not in the cache.
func (c *Controller) pod(uid types.UID) *metav1.PartialObjectMetadata {
	if found := controller.Indexed[metav1.PartialObjectMetadata](c.podIndex, byUID, string(uid)); len(found) > 0 {
		return found[0]
	}
	return nil
}

// groupChanged enqueues the Pods that may wait for a group, after the group has changed in the
// cache.
func (c *Controller) groupChanged(_, key string) {
	c.enqueueWaiting(controller.Indexed[metav1.PartialObjectMetadata](c.podIndex, byGroup, key), controller.BatchPeriod)
}

// shardChanged is called when a shard was added to or removed from the configuration,
// when its cache of groups is complete, and when its connection was opened or lost. Pods
// may wait until the groups of all shards are known.
func (c *Controller) shardChanged(string) { c.queue.AddAfter(allWaiting, controller.BatchPeriod) }

// podChanged enqueues Pods that request a machine. A Pod that was deleted and created
// again may appear as one change.
func (c *Controller) podChanged(before, after *metav1.PartialObjectMetadata) {
	if before != nil && (after == nil || before.UID != after.UID) {
		c.queue.Add(before.UID)
	}
	switch {
	case after == nil:
	case before == nil || before.UID != after.UID || before.ResourceVersion == after.ResourceVersion ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() || !maps.Equal(before.Annotations, after.Annotations):
		c.queue.Add(after.UID)
	}
}

func (c *Controller) nstanceMachineChanged(before, after *v1beta1.NstanceMachine) {
	switch {
	case after == nil:
		c.enqueue(before)
		c.enqueueSlot(slotOf(before))
	case before == nil || relevant(before, after) || reasonOf(machineProblem(before)) != reasonOf(machineProblem(after)):
		c.enqueue(after)
	}
}

// reasonOf returns the reason of a rejection, "" for nil.
func reasonOf(r *rejection) string {
	if r == nil {
		return ""
	}
	return r.reason
}

func (c *Controller) machineChanged(before, after *clusterv1.Machine) {
	switch {
	case after == nil:
		c.enqueue(before)
	case before == nil || relevant(before, after):
		c.enqueue(after)
	}
}

// relevant reports whether a change of one object of a pair matters to the other: its deletion
// began, its owner or a pause was added or removed, or it belongs to another Pod. Two equal states
// are a resync.
func relevant(before, after metav1.Object) bool {
	return before.GetResourceVersion() == after.GetResourceVersion() || before.GetUID() != after.GetUID() ||
		before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() ||
		(metav1.GetControllerOfNoCopy(before) == nil) != (metav1.GetControllerOfNoCopy(after) == nil) ||
		before.GetLabels()[v1beta1.LabelPodUID] != after.GetLabels()[v1beta1.LabelPodUID] ||
		controllers.PauseChanged(before, after)
}

// clusterChanged enqueues all Pods and pairs when the Cluster was created, deleted, paused or
// unpaused.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	cluster := after
	if after == nil {
		cluster = before
	}
	if cluster.Name != c.clusterName {
		return
	}
	if before != nil && after != nil && controllers.PausedBy(before) == controllers.PausedBy(after) &&
		before.DeletionTimestamp.IsZero() == after.DeletionTimestamp.IsZero() {
		return
	}
	for _, pod := range c.pods() {
		c.queue.Add(pod.UID)
	}
	for _, object := range c.pairs() {
		c.enqueue(object)
	}
}

// enqueue enqueues the Pod whose UID is in the name of an object.
func (c *Controller) enqueue(object metav1.Object) {
	if uid, ok := podOf(object.GetName()); ok {
		c.queue.Add(uid)
	}
}

// enqueueSlot enqueues the Pods of a slot that has room for a machine.
func (c *Controller) enqueueSlot(freed slot) {
	pods := controller.Indexed[metav1.PartialObjectMetadata](c.podIndex, byGroup, freed.group)
	c.enqueueWaiting(slices.DeleteFunc(pods, func(pod *metav1.PartialObjectMetadata) bool { return pod.Namespace != freed.namespace }), 0)
}

// enqueueWaiting enqueues the Pods without a machine, after delay.
func (c *Controller) enqueueWaiting(pods []*metav1.PartialObjectMetadata, delay time.Duration) {
	for _, pod := range pods {
		if _, err := c.nstanceMachineLister.Get(machineName(pod.UID)); apierrors.IsNotFound(err) {
			c.queue.AddAfter(pod.UID, delay)
		}
	}
}

// keys returns the UIDs of all Pods that request a machine or have one.
func (c *Controller) keys() []types.UID {
	keys := sets.New[types.UID]()
	for _, pod := range c.pods() {
		keys.Insert(pod.UID)
	}
	for _, object := range c.pairs() {
		if uid, ok := podOf(object.GetName()); ok {
			keys.Insert(uid)
		}
	}
	return keys.UnsortedList()
}

// pods returns all Pods that request a machine.
func (c *Controller) pods() []*metav1.PartialObjectMetadata {
	var pods []*metav1.PartialObjectMetadata
	for _, object := range c.podIndex.List() {
		if pod, ok := object.(*metav1.PartialObjectMetadata); ok {
			pods = append(pods, pod)
		}
	}
	return pods
}

// pairs returns all Machines and NstanceMachines in the caches.
func (c *Controller) pairs() []metav1.Object {
	var pairs []metav1.Object
	for _, indexer := range []cache.Indexer{c.machineIndex, c.nstanceMachineIndex} {
		for _, object := range indexer.List() {
			if accessor, err := meta.Accessor(object); err == nil {
				pairs = append(pairs, accessor)
			}
		}
	}
	return pairs
}

type metrics struct {
	limitHits prometheus.Counter
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{limitHits: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "nstance_operator_on_demand_limit_hits_total",
		Help: "Attempts to create the machine of a Pod that --on-demand-limit has prevented; each attempt is counted.",
	})}
	registry.MustRegister(m.limitHits)
	return m
}
