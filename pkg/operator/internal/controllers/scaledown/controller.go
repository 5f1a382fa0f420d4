// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package scaledown keeps the cluster autoscaler from removing the replacements of instances
// (docs/cluster-autoscaler.md#what-happens-when). A replacement is created first and is empty until the
// drain of the other instance moves Pods to it. A drain may take longer than the autoscaler waits,
// and then it would remove the replacement and lower the replicas.
package scaledown

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	nstancelisters "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// workers is the number of shard groups that are synced at once.
const workers = 4

// Controller protects Nodes. The keys of its queue are the names of shard groups: which Nodes are protected
// is decided for a shard group as a whole, so that a change of one instance enqueues one key.
type Controller struct {
	controller.Registrations

	namespace   string
	clusterName string

	nodeIndex        cache.Indexer
	machinePoolIndex cache.Indexer
	nodes            *controllers.Nodes
	members          *controllers.Members
	byShard          *controllers.ShardGroups
	pools            nstancelisters.NstanceMachinePoolNamespaceLister
	shardGroups      nstancelisters.NstanceShardGroupNamespaceLister
	clusters         listers.ResourceIndexer[*clusterv1.Cluster]
	groups           shard.Groups
	notices          shard.Notices
	client           kubernetes.Interface
	queue            *controller.Queue[string]
}

// New returns the controller and registers its handlers.
func New(d controllers.Dependencies) (*Controller, error) {
	nodes, err := controllers.NewNodes(&d)
	if err != nil {
		return nil, err
	}
	members, err := controllers.NewMembers(d.Informers.Nstance)
	if err != nil {
		return nil, err
	}
	pools, shardGroups := d.Informers.Nstance.NstanceMachinePools(), d.Informers.Nstance.NstanceShardGroups()
	byShard, err := controllers.NewShardGroups(shardGroups.Informer())
	if err != nil {
		return nil, err
	}
	c := &Controller{
		namespace:        d.Namespace,
		clusterName:      d.ClusterName,
		nodeIndex:        d.Informers.Nodes.GetIndexer(),
		machinePoolIndex: d.Informers.MachinePools.GetIndexer(),
		nodes:            nodes,
		members:          members,
		byShard:          byShard,
		pools:            pools.Lister().NstanceMachinePools(d.Namespace),
		shardGroups:      shardGroups.Lister().NstanceShardGroups(d.Namespace),
		clusters:         d.Informers.Clusters.Lister(),
		groups:           d.Groups,
		notices:          d.Notices,
		client:           d.Workload.Kube,
	}
	c.queue = controller.NewQueue("scaledown", c.sync)
	c.queue.SeedWith(c.keys)
	d.WatchShards(c.shardChanged, c.groupChanged)
	d.Notices.AddHandler(shard.NoticeHandler{OnInstance: c.noticeChanged, OnShard: c.shardChanged})
	c.Registrations, err = controller.Watch(
		controller.Watched{What: "protected Nodes", Informer: d.Informers.Nodes, Indexers: indexers, Handler: controller.OnChange(c.nodeChanged)},
		controller.Watched{What: "pools with Machines", Informer: pools.Informer(), Handler: controller.OnChange(c.poolChanged)},
		controller.Watched{What: "shard groups of protected Nodes", Informer: shardGroups.Informer(), Handler: controller.OnChange(c.shardGroupChanged)},
		controller.Watched{What: "MachinePools of the autoscaler", Informer: d.Informers.MachinePools, Handler: controller.OnChange(c.machinePoolChanged)},
		controller.Watched{What: "pauses of Clusters", Informer: d.Informers.Clusters, Handler: controller.OnChange(c.clusterChanged)},
	)
	return c, err
}

// Run syncs shard groups until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }

// byProtected indexes the Nodes that the operator protects by the shard group that the annotation names.
const byProtected = "scaledown.protected"

var indexers = cache.Indexers{byProtected: func(obj any) ([]string, error) {
	if node, ok := obj.(*corev1.Node); ok {
		if name, ours := node.Annotations[v1beta1.AnnotationScaleDownDisabled]; ours {
			return []string{name}, nil
		}
	}
	return nil, nil
}}

// protectedFor returns the Nodes that are protected for a shard group.
func (c *Controller) protectedFor(name string) []*corev1.Node {
	return controller.Indexed[corev1.Node](c.nodeIndex, byProtected, name)
}

// keys returns the names of all shard groups.
func (c *Controller) keys() []string {
	groups, err := c.shardGroups.List(labels.Everything())
	if err != nil {
		// A lister of a cache returns no errors (https://pkg.go.dev/k8s.io/client-go/tools/cache#ListAll).
		panic(err)
	}
	names := make([]string, len(groups))
	for i, group := range groups {
		names[i] = group.Name
	}
	return names
}

// shardChanged enqueues the shard groups of a shard whose connection changed, or whose groups or notices
// are complete.
func (c *Controller) shardChanged(id string) {
	for _, group := range c.byShard.OfShard(id) {
		c.enqueue(group)
	}
}

// groupChanged enqueues the shard group of a group that a shard reports.
func (c *Controller) groupChanged(id, key string) {
	if group, err := c.shardGroups.Get(v1beta1.ShardGroupName(key, id)); err == nil {
		c.enqueue(group)
	}
}

// noticeChanged enqueues the shard group of an instance whose notice has arrived. A notice that is removed
// does not name it any more: it belongs to a shard group with protected Nodes, or does not matter.
func (c *Controller) noticeChanged(id, instance string) {
	if notice, ok := c.notices.Get(id, instance); ok {
		c.groupChanged(id, notice.Group)
		return
	}
	for _, group := range c.byShard.OfShard(id) {
		if len(c.protectedFor(group.Name)) > 0 {
			c.enqueue(group)
		}
	}
}

// enqueue enqueues a shard group whose pool has Machines, or had them when Nodes were protected.
func (c *Controller) enqueue(group *v1beta1.NstanceShardGroup) {
	owner := controllers.PoolOwning(group)
	if owner == nil {
		return
	}
	pool, err := c.pools.Get(owner.Name)
	if err == nil && hasMachines(pool) || len(c.protectedFor(group.Name)) > 0 {
		c.queue.AddAfter(group.Name, controller.BatchPeriod)
	}
}

// nodeChanged enqueues the shard groups that may have the instance of a Node which is new, or which has other
// annotations, another shard or another provider id.
func (c *Controller) nodeChanged(before, after *corev1.Node) {
	if after == nil || before != nil && before.Spec.ProviderID == after.Spec.ProviderID &&
		equalEntry(before.Annotations, after.Annotations, AnnotationDisabled) &&
		equalEntry(before.Annotations, after.Annotations, v1beta1.AnnotationScaleDownDisabled) &&
		equalEntry(before.Labels, after.Labels, v1beta1.LabelShard) {
		return
	}
	for _, group := range c.nodes.ShardGroupsWith(after.Spec.ProviderID) {
		c.enqueue(group)
	}
}

func equalEntry(a, b map[string]string, key string) bool {
	first, inFirst := a[key]
	second, inSecond := b[key]
	return first == second && inFirst == inSecond
}

// poolChanged enqueues the shard groups of a pool that has Machines, or no longer, or that is paused or
// deleted.
func (c *Controller) poolChanged(before, after *v1beta1.NstanceMachinePool) {
	if after == nil || before != nil && hasMachines(before) == hasMachines(after) && !controllers.PauseChanged(before, after) &&
		deleting(before) == deleting(after) && before.UID == after.UID {
		return
	}
	c.enqueuePool(after.Name)
}

func (c *Controller) enqueuePool(name string) {
	for _, group := range c.members.ShardGroupsOfName(name) {
		c.enqueue(group)
	}
}

// shardGroupChanged enqueues a shard group that is new or is being deleted, that another pool owns, or whose
// shard reports other instances, and at each resync; and one that is gone, if it has left protected Nodes.
func (c *Controller) shardGroupChanged(before, after *v1beta1.NstanceShardGroup) {
	if after == nil && before != nil && len(c.protectedFor(before.Name)) > 0 {
		c.queue.Add(before.Name)
	}
	if after == nil || before != nil && before.ResourceVersion != after.ResourceVersion && deleting(before) == deleting(after) &&
		equality.Semantic.DeepEqual(before.Status.ProviderIDs, after.Status.ProviderIDs) &&
		equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences) {
		return
	}
	c.enqueue(after)
}

// machinePoolChanged enqueues the shard groups of the pool of a MachinePool that is new, deleted or paused,
// or that the autoscaler may scale now or no longer.
func (c *Controller) machinePoolChanged(before, after *clusterv1.MachinePool) {
	if before != nil && after != nil && capi.PoolOf(before) == capi.PoolOf(after) &&
		capi.Autoscaled(before) == capi.Autoscaled(after) && !controllers.PauseChanged(before, after) {
		return
	}
	for _, machinePool := range []*clusterv1.MachinePool{before, after} {
		if machinePool != nil {
			c.enqueuePool(capi.PoolOf(machinePool))
		}
	}
}

// clusterChanged enqueues all shard groups when the Cluster is no longer paused.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	if before == nil || after == nil || controllers.PausedBy(before) == controllers.PausedBy(after) {
		return
	}
	for _, name := range c.keys() {
		c.queue.Add(name)
	}
}

// hasMachines reports whether the instances of a pool have Machines, without which the autoscaler removes
// none (docs/cluster-autoscaler.md#machines).
func hasMachines(pool *v1beta1.NstanceMachinePool) bool {
	return pool.Status.InfrastructureMachineKind != ""
}

func deleting(object metav1.Object) bool { return !object.GetDeletionTimestamp().IsZero() }
