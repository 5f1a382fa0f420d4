// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package ondemand gives a machine to each Pod that asks for one by annotation,
// and takes it back when the Pod is gone or has finished. It makes and removes
// pairs of a Machine and an NstanceMachine and nothing else; Pods are never
// changed.
package ondemand

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	informers "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	nstancelisters "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

const (
	// workers bound how many machines are made or removed at once.
	workers = 8
	// staleRetry is how long a sync waits for the caches to show the last write.
	// Usually the change itself wakes it before.
	staleRetry = time.Second
	// livingRetry is after what time a machine is looked at again whose Pod is
	// there and does not ask for it any more.
	livingRetry = 5 * time.Minute
)

// Shards tells which shards are configured.
type Shards interface {
	// Shards are the ids of the configured shards.
	Shards() []string
}

// Groups is the cache of what shard servers report.
type Groups interface {
	// Get returns a group of a shard, if the shard has it.
	Get(shard, key string) (shard.Group, bool)
	// List returns the groups of a shard.
	List(shard string) []shard.Group
	// HasSynced tells whether the shard's groups are known completely.
	HasSynced(shard string) bool
}

// Controller is the controller of Pods that ask for a machine. The keys of its
// queue are the UIDs of Pods: a Pod that is made anew under its old name is
// another one, and gets another machine.
type Controller struct {
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
	shards               Shards
	groups               Groups
	recorder             events.EventRecorder
	queue                *controller.Queue[types.UID]
	machineWrites        *controller.Writes
	nstanceMachineWrites *controller.Writes
	limiter              *limiter
	complaints           complaints
}

// New makes the controller and registers its handlers, which it returns for
// waiting until they have seen every object. Machines are made in namespace, for
// the Cluster clusterName. There are at most limit of them for the Pods of one
// namespace that name one group; 0 is no limit. The informer of Pods is one that
// NewPodInformer made with podClient.
func New(
	namespace, clusterName string,
	limit int,
	podClient metadata.Interface,
	client clientset.InfrastructureV1beta1Interface,
	capiClient *capi.Client,
	pods cache.SharedIndexInformer,
	nstanceMachines informers.NstanceMachineInformer,
	machines *capi.Informer[*clusterv1.Machine],
	clusters *capi.Informer[*clusterv1.Cluster],
	shards Shards,
	groups Groups,
	recorder events.EventRecorder,
) (*Controller, []cache.ResourceEventHandlerRegistration, error) {
	c := &Controller{
		namespace:            namespace,
		clusterName:          clusterName,
		podClient:            podClient,
		machines:             capiClient.Machines(namespace),
		nstanceMachines:      client.NstanceMachines(namespace),
		machineLister:        machines.Lister(),
		nstanceMachineLister: nstanceMachines.Lister().NstanceMachines(namespace),
		clusterLister:        clusters.Lister(),
		podIndex:             pods.GetIndexer(),
		machineIndex:         machines.GetIndexer(),
		nstanceMachineIndex:  nstanceMachines.Informer().GetIndexer(),
		podsSynced:           pods.HasSynced,
		shards:               shards,
		groups:               groups,
		recorder:             recorder,
		machineWrites:        controller.NewWrites(machines.GetStore()),
		nstanceMachineWrites: controller.NewWrites(nstanceMachines.Informer().GetStore()),
		limiter:              newLimiter(limit, nstanceMachines.Informer().GetIndexer()),
	}
	c.queue = controller.NewQueue("ondemand", c.sync)

	registrations, err := controller.Watch(
		controller.Watched{What: "Pods", Informer: pods, Handler: controller.OnChange(c.podChanged)},
		controller.Watched{What: "machines", Informer: nstanceMachines.Informer(), Indexers: slotIndexers, Handler: controller.OnChange(c.nstanceMachineChanged)},
		controller.Watched{What: "Machines", Informer: machines, Handler: controller.OnChange(c.machineChanged)},
		controller.Watched{What: "Clusters", Informer: clusters, Handler: controller.OnChange(c.clusterChanged)},
	)
	return c, registrations, err
}

// Run makes and removes machines until ctx ends.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }

// pod is the Pod of that UID, nil when the cache has none.
func (c *Controller) pod(uid types.UID) *metav1.PartialObjectMetadata {
	if found := controller.Indexed[metav1.PartialObjectMetadata](c.podIndex, byUID, string(uid)); len(found) > 0 {
		return found[0]
	}
	return nil
}
