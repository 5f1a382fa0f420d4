// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package controllers has what the controllers of nstance-operator share. Dependencies is the
// argument of each constructor; Members, Pools, Nodes and DrainRules look up related objects in
// the caches; PausedBy, CallResult, LogDeletion and UnreachableReason keep pauses, the audit trail
// and conditions the same in all controllers. Code that is not specific to this operator
// belongs to pkg/controller.
package controllers

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	nstanceinformers "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// Dependencies are the clients, informers and shards that constructors of controllers take.
// Every field is required, although a controller uses only some.
type Dependencies struct {
	// Namespace is the namespace of our objects and of Cluster API's.
	Namespace string
	// ClusterName is the name of the Cluster and of the NstanceCluster.
	ClusterName string

	// Kube, Nstance and CAPI are clients of the cluster with our objects and Cluster API's
	// objects.
	Kube    kubernetes.Interface
	Nstance clientset.InfrastructureV1beta1Interface
	CAPI    *capi.Client
	// Workload has the clients of the cluster with the Nodes and Pods, which may be the same
	// cluster.
	Workload Workload

	Informers Informers

	// Shards are the shards with a valid endpoint.
	Shards shard.Set
	// NamedShards are all shards that the configuration names, including shards with an
	// invalid endpoint, whose groups are not known.
	NamedShards shard.Set
	ShardClient shard.Client
	Groups      shard.Groups
	Notices     shard.Notices

	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// Metrics is the registry for metrics of controllers.
	Metrics prometheus.Registerer
}

// Workload has the clients of the cluster with the Nodes and Pods.
type Workload struct {
	Kube     kubernetes.Interface
	Metadata metadata.Interface
}

// WatchShards registers handlers for changes of the set of shards and of their groups.
func (d *Dependencies) WatchShards(shardChanged func(shard string), groupChanged func(shard, key string)) {
	d.Shards.AddHandler(shardChanged)
	d.Groups.AddHandler(shard.GroupHandler{OnGroup: groupChanged, OnShard: shardChanged})
}

// Informers are started after all controllers are constructed.
type Informers struct {
	// Nstance are the informers of our kinds.
	Nstance nstanceinformers.Interface

	Clusters     *capi.Informer[*clusterv1.Cluster]
	MachinePools *capi.Informer[*clusterv1.MachinePool]
	Machines     *capi.Informer[*clusterv1.Machine]
	// MachineDrainRules is empty if the kind does not exist or may not be read.
	MachineDrainRules cache.SharedIndexInformer

	// Nodes, Pods and VolumeAttachments watch the cluster with the Nodes. If our objects are
	// in another cluster, controllers may run before these caches are complete: an object that
	// is not in the cache may exist.
	//
	// Nodes have only the fields that the operator reads.
	Nodes cache.SharedIndexInformer
	// Pods are the Pods with an annotation that requests an instance.
	Pods cache.SharedIndexInformer
	// VolumeAttachments have only the fields that drains read.
	VolumeAttachments cache.SharedIndexInformer
	// Kubeconfig watches only the Secret with the kubeconfig of the Cluster.
	Kubeconfig cache.SharedIndexInformer
}

// PausedBy returns what pauses the work on objects: the Cluster, by spec.paused, or an object,
// by the annotation cluster.x-k8s.io/paused with any value (docs/capi.md#pause). It returns ""
// if nothing is paused. cluster may be nil.
func PausedBy(cluster *clusterv1.Cluster, objects ...metav1.Object) string {
	if cluster != nil && cluster.Spec.Paused != nil && *cluster.Spec.Paused {
		return fmt.Sprintf("Cluster %s has spec.paused", cluster.Name)
	}
	for _, object := range objects {
		if _, paused := object.GetAnnotations()[clusterv1.PausedAnnotation]; paused {
			return fmt.Sprintf("%s has the annotation %s", object.GetName(), clusterv1.PausedAnnotation)
		}
	}
	return ""
}

// PauseChanged reports whether the annotation that pauses an object was added or removed.
func PauseChanged(before, after metav1.Object) bool {
	return PausedBy(nil, before) != PausedBy(nil, after)
}

// ReasonDeletingMachine is the reason of the event for a Machine that the operator deletes.
const ReasonDeletingMachine = "DeletingMachine"

// CallResult returns the result of a call to a shard for the audit trail.
func CallResult(err error) audit.Result {
	switch {
	case err == nil:
		return audit.Accepted
	case shard.IsUnclear(err):
		return audit.Unknown
	case shard.IsRejected(err), shard.IsStale(err):
		return audit.Rejected
	default:
		return audit.Unknown
	}
}

// LogDeletion writes the audit entry of a request to delete a Kubernetes object. It writes
// nothing if err is not nil: nothing was deleted, or the result is unknown.
func LogDeletion(ctx context.Context, kind string, object klog.ObjectRef, reason string, err error) {
	if err == nil {
		audit.Entry{Action: audit.DeleteObject, Kind: kind, Name: object.String(), Writer: FieldManager, Reason: reason}.Log(ctx)
	}
}

// RecordMachineDeletion calls LogDeletion for a Machine, and records an event about it for its
// owner, who does not read the log of the operator.
func RecordMachineDeletion(ctx context.Context, recorder events.EventRecorder, machine *clusterv1.Machine, reason string, err error) {
	LogDeletion(ctx, "Machine", klog.KObj(machine), reason, err)
	if err == nil {
		controller.Record(recorder, machine, ReasonDeletingMachine, "DeleteMachine", reason)
	}
}

// LostGrace is how long a shard may be disconnected before its objects report it. A server
// that restarts is reachable again within it, and causes no writes.
const LostGrace = 5 * time.Second

// UnreachableReason returns the reason of a condition for the error that made a shard
// unreachable.
func UnreachableReason(err error) string {
	switch {
	case shard.IsWrongServer(err):
		return v1beta1.ReasonWrongShard
	case shard.IsOtherCluster(err):
		return v1beta1.ReasonOtherCluster
	case shard.Exceeded(err) != "":
		return v1beta1.ReasonShardLimitExceeded
	}
	return v1beta1.ReasonShardUnreachable
}

// FieldManager owns every field that the operator writes.
const FieldManager = capi.FieldManager

// Apply has the options of every server-side apply. Force reverts changes by other writers,
// because the operator owns each field that it applies
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts).
var Apply = metav1.ApplyOptions{FieldManager: FieldManager, Force: true}
