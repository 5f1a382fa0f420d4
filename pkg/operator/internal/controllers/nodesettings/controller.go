// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package nodesettings sets the labels and taints of a pool on its Nodes, and changes them in place
// (docs/reference.md#labels-and-taints). Kubelets may not set all labels, and set them only when they
// register.
package nodesettings

import (
	"context"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	nstancelisters "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// workers is the number of Nodes that are synced at once.
const workers = 4

// Controller sets labels and taints. The keys of its queue are the names of Nodes.
type Controller struct {
	controller.Registrations

	namespace   string
	clusterName string

	nodeIndex         cache.Indexer
	nodesByProviderID *controllers.Nodes
	members           *controllers.Members
	pools             nstancelisters.NstanceMachinePoolNamespaceLister
	clusters          listers.ResourceIndexer[*clusterv1.Cluster]
	client            kubernetes.Interface
	recorder          events.EventRecorder
	queue             *controller.Queue[string]

	nodesWritten prometheus.Counter
}

// New returns the controller and registers its handlers.
func New(d controllers.Dependencies) (*Controller, error) {
	nodesByProviderID, err := controllers.NewNodes(&d)
	if err != nil {
		return nil, err
	}
	members, err := controllers.NewMembers(d.Informers.Nstance)
	if err != nil {
		return nil, err
	}
	pools, shardGroups := d.Informers.Nstance.NstanceMachinePools(), d.Informers.Nstance.NstanceShardGroups()
	c := &Controller{
		namespace:         d.Namespace,
		clusterName:       d.ClusterName,
		nodeIndex:         d.Informers.Nodes.GetIndexer(),
		nodesByProviderID: nodesByProviderID,
		members:           members,
		pools:             pools.Lister().NstanceMachinePools(d.Namespace),
		clusters:          d.Informers.Clusters.Lister(),
		client:            d.Workload.Kube,
		recorder:          d.Recorder,
		nodesWritten: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nstance_operator_node_settings_written_total",
			Help: "Writes of labels and taints of pools to Nodes.",
		}),
	}
	d.Metrics.MustRegister(c.nodesWritten)
	c.queue = controller.NewQueue("nodesettings", c.sync)
	c.queue.SeedWith(c.keys)
	c.Registrations, err = controller.Watch(
		controller.Watched{What: "labels and taints of Nodes", Informer: d.Informers.Nodes, Indexers: indexers, Handler: controller.OnChange(c.nodeChanged)},
		controller.Watched{What: "settings of Nodes", Informer: pools.Informer(), Handler: controller.OnChange(c.poolChanged)},
		controller.Watched{What: "provider ids of shard groups", Informer: shardGroups.Informer(), Handler: controller.OnChange(c.shardGroupChanged)},
		controller.Watched{What: "pauses of Clusters", Informer: d.Informers.Clusters, Handler: controller.OnChange(c.clusterChanged)},
	)
	return c, err
}

// Run syncs Nodes until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }

// candidates indexes the Nodes on which the operator has set something, and those that wait for it, all
// under candidate. The other Nodes matter only if their pools have settings.
const (
	candidates = "nodesettings.candidates"
	candidate  = "candidate"
)

var indexers = cache.Indexers{candidates: func(obj any) ([]string, error) {
	if node, ok := obj.(*corev1.Node); ok && isCandidate(node) {
		return []string{candidate}, nil
	}
	return nil, nil
}}

// isCandidate reports whether a Node may have to be changed although its pool has no settings.
func isCandidate(node *corev1.Node) bool {
	_, annotated := node.Annotations[v1beta1.AnnotationNodeSettings]
	return annotated || slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1beta1.TaintUninitialized })
}

// keys returns the names of the candidates, and of the Nodes of pools that have settings. A large cluster
// has many other Nodes.
func (c *Controller) keys() []string {
	names := sets.New[string]()
	for _, node := range controller.Indexed[corev1.Node](c.nodeIndex, candidates, candidate) {
		names.Insert(node.Name)
	}
	pools, err := c.pools.List(labels.Everything())
	if err != nil {
		// A lister of a cache returns no errors (https://pkg.go.dev/k8s.io/client-go/tools/cache#ListAll).
		panic(err)
	}
	for _, pool := range pools {
		if pool.Spec.Node == nil {
			continue
		}
		for _, group := range c.members.ShardGroupsOfName(pool.Name) {
			for _, id := range group.Status.ProviderIDs {
				for _, node := range c.nodesByProviderID.WithProviderID(id) {
					names.Insert(node.Name)
				}
			}
		}
	}
	return sets.List(names)
}

// hasSettings reports whether a pool has settings.
func (c *Controller) hasSettings(pool string) bool {
	found, err := c.pools.Get(pool)
	return err == nil && found.Spec.Node != nil
}

// nodeChanged enqueues a Node that is new, or that has other labels, taints or another provider id, if it
// is a candidate or its pool has settings.
func (c *Controller) nodeChanged(before, after *corev1.Node) {
	if after == nil || before != nil &&
		before.ResourceVersion != after.ResourceVersion && before.Spec.ProviderID == after.Spec.ProviderID &&
		maps.Equal(before.Labels, after.Labels) && maps.Equal(before.Annotations, after.Annotations) &&
		slices.EqualFunc(before.Spec.Taints, after.Spec.Taints, sameTaint) {
		return
	}
	if isCandidate(after) || slices.ContainsFunc(c.nodesByProviderID.ShardGroupsWith(after.Spec.ProviderID), func(group *v1beta1.NstanceShardGroup) bool {
		return c.hasSettings(poolOf(group))
	}) {
		c.queue.Add(after.Name)
	}
}

// poolChanged enqueues the Nodes of a pool whose settings of Nodes have changed, or that is no longer
// paused.
func (c *Controller) poolChanged(before, after *v1beta1.NstanceMachinePool) {
	switch {
	case after == nil:
	case before == nil && after.Spec.Node == nil:
	case before == nil, controllers.PauseChanged(before, after), !equality.Semantic.DeepEqual(before.Spec.Node, after.Spec.Node):
		for _, group := range c.members.ShardGroupsOfName(after.Name) {
			c.enqueue(group.Status.ProviderIDs, true)
		}
	}
}

// shardGroupChanged enqueues the Nodes of instances that a shard group reports for the first time.
func (c *Controller) shardGroupChanged(before, after *v1beta1.NstanceShardGroup) {
	if after == nil {
		return
	}
	known := sets.New[string]()
	if before != nil && poolOf(before) == poolOf(after) {
		if slices.Equal(before.Status.ProviderIDs, after.Status.ProviderIDs) {
			return
		}
		known.Insert(before.Status.ProviderIDs...)
	}
	c.enqueue(slices.DeleteFunc(slices.Clone(after.Status.ProviderIDs), known.Has), c.hasSettings(poolOf(after)))
}

// clusterChanged enqueues Nodes when the Cluster is no longer paused.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	if before == nil || after == nil || controllers.PausedBy(before) == controllers.PausedBy(after) {
		return
	}
	for _, name := range c.keys() {
		c.queue.Add(name)
	}
}

// enqueue enqueues the Nodes with these provider ids, all or the candidates.
func (c *Controller) enqueue(providerIDs []string, all bool) {
	for _, id := range providerIDs {
		for _, node := range c.nodesByProviderID.WithProviderID(id) {
			if all || isCandidate(node) {
				c.queue.Add(node.Name)
			}
		}
	}
}

// poolOf returns the name of the pool that owns a shard group, "" if no pool does.
func poolOf(group *v1beta1.NstanceShardGroup) string {
	if owner := controllers.PoolOwning(group); owner != nil {
		return owner.Name
	}
	return ""
}
