// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package ondemand creates a machine for each Pod that requests one by annotation,
// and deletes it when the Pod was deleted or has finished. It creates and deletes
// pairs of a Machine and an NstanceMachine and nothing else. Pods are never changed.
package ondemand

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

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
	// staleRetry is the delay of a sync whose caches are older than its last write. It
	// is longer than controller.StaleRetry, because usually the change in the cache
	// enqueues the Pod before.
	staleRetry = time.Second
	// existingPodRetry is the delay until a pair is checked again whose Pod exists and
	// does not request it any more.
	existingPodRetry = 5 * time.Minute
)

// Options are the inputs of the controller that others do not have.
type Options struct {
	// Limit is the number of machines for the Pods of one namespace that name one
	// group. 0 is no limit.
	Limit int
	// DrainTimeout is how long the drain of a machine may take, and then the detachment of
	// its volumes. 0 is no limit.
	DrainTimeout time.Duration
	// Namespaces and Groups are those whose Pods, and of which Pods, may request machines.
	// Empty is all.
	Namespaces, Groups []string
}

// Controller is the controller of Pods that request a machine. The keys of its queue
// are the UIDs of Pods: a Pod that is created again with the same name is another Pod,
// and gets another machine.
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

// New returns the controller, whose event handlers are registered. The informer of
// Pods must be one that NewPodInformer returned.
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

// pod returns the Pod with a UID, nil when the cache has none.
func (c *Controller) pod(uid types.UID) *metav1.PartialObjectMetadata {
	if found := controller.Indexed[metav1.PartialObjectMetadata](c.podIndex, byUID, string(uid)); len(found) > 0 {
		return found[0]
	}
	return nil
}
