// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package capi is a typed client, with informers and listers, for the kinds of Cluster
// API that the operator uses. Cluster API publishes types, but no clients.
package capi

import (
	"context"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// Client reads and writes the kinds of group cluster.x-k8s.io in version v1beta2.
type Client struct {
	rest  rest.Interface
	codec runtime.ParameterCodec
}

// ClusterClient reads and writes the Clusters of one namespace.
type ClusterClient = gentype.ClientWithList[*clusterv1.Cluster, *clusterv1.ClusterList]

// MachinePoolClient reads and writes the MachinePools of one namespace.
type MachinePoolClient = gentype.ClientWithList[*clusterv1.MachinePool, *clusterv1.MachinePoolList]

// MachineClient reads and writes the Machines of one namespace.
type MachineClient = gentype.ClientWithList[*clusterv1.Machine, *clusterv1.MachineList]

// NewForConfig returns a Client for config. It does not change config.
func NewForConfig(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := clusterv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register Cluster API kinds: %w", err)
	}
	config = rest.CopyConfig(config)
	config.GroupVersion = &clusterv1.GroupVersion
	config.APIPath = "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("create the client for %s: %w", clusterv1.GroupVersion, err)
	}
	return &Client{rest: client, codec: runtime.NewParameterCodec(scheme)}, nil
}

// Clusters returns the client for the Clusters of namespace.
func (c *Client) Clusters(namespace string) *ClusterClient {
	return gentype.NewClientWithList[*clusterv1.Cluster, *clusterv1.ClusterList](
		"clusters", c.rest, c.codec, namespace,
		func() *clusterv1.Cluster { return &clusterv1.Cluster{} },
		func() *clusterv1.ClusterList { return &clusterv1.ClusterList{} })
}

// MachinePools returns the client for the MachinePools of namespace.
func (c *Client) MachinePools(namespace string) *MachinePoolClient {
	return gentype.NewClientWithList[*clusterv1.MachinePool, *clusterv1.MachinePoolList](
		"machinepools", c.rest, c.codec, namespace,
		func() *clusterv1.MachinePool { return &clusterv1.MachinePool{} },
		func() *clusterv1.MachinePoolList { return &clusterv1.MachinePoolList{} })
}

// Machines returns the client for the Machines of namespace.
func (c *Client) Machines(namespace string) *MachineClient {
	return gentype.NewClientWithList[*clusterv1.Machine, *clusterv1.MachineList](
		"machines", c.rest, c.codec, namespace,
		func() *clusterv1.Machine { return &clusterv1.Machine{} },
		func() *clusterv1.MachineList { return &clusterv1.MachineList{} })
}

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
// resync period, 0 to disable resyncs.
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
// index ByPool. resync is the resync period, 0 to disable resyncs.
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
// resync period, 0 to disable resyncs.
func NewMachineInformer(client *Client, namespace string, resync time.Duration) *Informer[*clusterv1.Machine] {
	machines := client.Machines(namespace)
	return newInformer(client, namespace, resync, resource[*clusterv1.Machine]{
		name:    "machines",
		example: &clusterv1.Machine{},
		list:    func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return machines.List(ctx, o) },
		watch:   machines.Watch,
	})
}

// resource describes how an informer lists and watches a kind.
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
