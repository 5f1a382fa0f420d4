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
	"k8s.io/apimachinery/pkg/watch"
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

// Lister reads the cache of the informer's namespace.
func (i *Informer[T]) Lister() listers.ResourceIndexer[T] {
	return listers.NewNamespaced[T](listers.New[T](i.GetIndexer(), i.resource), i.namespace)
}

// NewClusterInformer watches the Clusters of namespace; resync is the period
// after which handlers see every object again, 0 for never.
func NewClusterInformer(client *Client, namespace string, resync time.Duration) *Informer[*clusterv1.Cluster] {
	clusters := client.Clusters(namespace)
	return newInformer(client, namespace, resync, "clusters", &clusterv1.Cluster{}, nil,
		func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return clusters.List(ctx, options)
		}, clusters.Watch)
}

// NewMachinePoolInformer watches the MachinePools of namespace and indexes them
// by ByPool; resync is the period after which handlers see every object again, 0
// for never.
func NewMachinePoolInformer(client *Client, namespace string, resync time.Duration) *Informer[*clusterv1.MachinePool] {
	pools := client.MachinePools(namespace)
	return newInformer(client, namespace, resync, "machinepools", &clusterv1.MachinePool{}, machinePoolIndexers,
		func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return pools.List(ctx, options)
		}, pools.Watch)
}

// NewMachineInformer watches the Machines of namespace; resync is the period after
// which handlers see every object again, 0 for never.
func NewMachineInformer(client *Client, namespace string, resync time.Duration) *Informer[*clusterv1.Machine] {
	machines := client.Machines(namespace)
	return newInformer(client, namespace, resync, "machines", &clusterv1.Machine{}, nil,
		func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return machines.List(ctx, options)
		}, machines.Watch)
}

func newInformer[T runtime.Object](
	client *Client, namespace string, resync time.Duration, resource string, example T, indexers cache.Indexers,
	list cache.ListWithContextFunc, watch func(context.Context, metav1.ListOptions) (watch.Interface, error),
) *Informer[T] {
	indexers = maps.Clone(indexers)
	if indexers == nil {
		indexers = cache.Indexers{}
	}
	indexers[cache.NamespaceIndex] = cache.MetaNamespaceIndexFunc
	lw := &cache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: watch}
	return &Informer[T]{
		SharedIndexInformer: cache.NewSharedIndexInformerWithOptions(
			cache.ToListWatcherWithWatchListSemantics(lw, client), example,
			cache.SharedIndexInformerOptions{
				ResyncPeriod: resync,
				Indexers:     indexers,
			}),
		resource:  clusterv1.GroupVersion.WithResource(resource).GroupResource(),
		namespace: namespace,
	}
}
