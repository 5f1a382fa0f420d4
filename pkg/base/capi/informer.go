// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"context"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// Informer is a shared informer and the lister of its cache.
type Informer[T runtime.Object] struct {
	cache.SharedIndexInformer
	resource  schema.GroupResource
	namespace string
}

// Lister returns a lister of the informer's namespace.
func (i *Informer[T]) Lister() listers.ResourceIndexer[T] {
	return listers.NewNamespaced[T](listers.New[T](i.GetIndexer(), i.resource), i.namespace)
}

// NewClusterInformer returns an informer of the Clusters of namespace. resync is the
// resync period, 0 for none.
func NewClusterInformer(client *Client, namespace string, resync time.Duration) *Informer[*clusterv1.Cluster] {
	clusters := client.Clusters(namespace)
	return newInformer(client, namespace, resync, resource[*clusterv1.Cluster]{
		name:    "clusters",
		example: &clusterv1.Cluster{},
		list:    func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return clusters.List(ctx, o) },
		watch:   clusters.Watch,
	})
}

// NewMachinePoolInformer returns an informer of the MachinePools of namespace, with the
// index ByPool. resync is the resync period, 0 for none.
func NewMachinePoolInformer(client *Client, namespace string, resync time.Duration) *Informer[*clusterv1.MachinePool] {
	pools := client.MachinePools(namespace)
	return newInformer(client, namespace, resync, resource[*clusterv1.MachinePool]{
		name:     "machinepools",
		example:  &clusterv1.MachinePool{},
		indexers: machinePoolIndexers,
		list:     func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pools.List(ctx, o) },
		watch:    pools.Watch,
	})
}

// NewMachineInformer returns an informer of the Machines of namespace. resync is the
// resync period, 0 for none.
func NewMachineInformer(client *Client, namespace string, resync time.Duration) *Informer[*clusterv1.Machine] {
	machines := client.Machines(namespace)
	return newInformer(client, namespace, resync, resource[*clusterv1.Machine]{
		name:    "machines",
		example: &clusterv1.Machine{},
		list:    func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return machines.List(ctx, o) },
		watch:   machines.Watch,
	})
}

// resource is what an informer lists and watches.
type resource[T runtime.Object] struct {
	name     string
	example  T
	indexers cache.Indexers
	list     cache.ListWithContextFunc
	watch    cache.WatchFuncWithContext
}

func newInformer[T runtime.Object](client *Client, namespace string, resync time.Duration, r resource[T]) *Informer[T] {
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	maps.Copy(indexers, r.indexers)
	lw := &cache.ListWatch{ListWithContextFunc: r.list, WatchFuncWithContext: r.watch}
	return &Informer[T]{
		SharedIndexInformer: cache.NewSharedIndexInformerWithOptions(
			cache.ToListWatcherWithWatchListSemantics(lw, client), r.example,
			cache.SharedIndexInformerOptions{
				ResyncPeriod: resync,
				Indexers:     indexers,
			}),
		resource:  clusterv1.GroupVersion.WithResource(r.name).GroupResource(),
		namespace: namespace,
	}
}
