// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package controllers has what the controllers of nstance-operator share beside package
// controller: their dependencies, and how they find pools, members and Nodes.
package controllers

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/base/capi"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	nstanceinformers "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// Dependencies are what the constructors of controllers take: clients, informers
// and shards. Every field is required; a controller uses those that it needs.
type Dependencies struct {
	// Namespace is the namespace of our objects and of Cluster API's.
	Namespace string
	// ClusterName is the name of the Cluster and of the NstanceCluster.
	ClusterName string

	// Kube, Nstance and CAPI are clients of the cluster with our objects and Cluster
	// API's.
	Kube    kubernetes.Interface
	Nstance clientset.InfrastructureV1beta1Interface
	CAPI    *capi.Client
	// Workload are clients of the cluster with the Nodes and Pods, which may be the same.
	Workload Workload

	Informers Informers

	// Shards are the shards with a valid endpoint.
	Shards shard.Set
	// NamedShards are all shards that the configuration names, those whose endpoint
	// is not valid included: nothing is known about the groups of these.
	NamedShards shard.Set
	ShardClient shard.Client
	Groups      shard.Groups
	Notices     shard.Notices

	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// Metrics is where controllers register their metrics.
	Metrics prometheus.Registerer
}

// Workload are clients of the cluster with the Nodes and Pods.
type Workload struct {
	Kube     kubernetes.Interface
	Metadata metadata.Interface
}

// WatchShards registers handlers with the set of shards and with the cache of their
// groups.
func (d *Dependencies) WatchShards(shardChanged func(shard string), groupChanged func(shard, key string)) {
	d.Shards.AddHandler(shardChanged)
	d.Groups.AddHandler(shard.GroupHandler{OnGroup: groupChanged, OnShard: shardChanged})
}

// Informers are the informers that controllers share.
type Informers struct {
	// Nstance are the informers of our kinds.
	Nstance nstanceinformers.Interface

	Clusters     *capi.Informer[*clusterv1.Cluster]
	MachinePools *capi.Informer[*clusterv1.MachinePool]
	Machines     *capi.Informer[*clusterv1.Machine]

	// Nodes, Pods and VolumeAttachments are those of the cluster with the Nodes. If it is
	// another cluster than that of our objects, controllers may run before these caches
	// are complete: an object that they do not have may exist.
	//
	// Nodes have the fields that the operator reads and no others.
	Nodes cache.SharedIndexInformer
	// Pods are the Pods with an annotation that requests an instance.
	Pods cache.SharedIndexInformer
	// VolumeAttachments have the fields that drains read and no others.
	VolumeAttachments cache.SharedIndexInformer
	// Kubeconfig is the one Secret with the kubeconfig of the Cluster.
	Kubeconfig cache.SharedIndexInformer
}
