// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package orphannode deletes Nodes whose instances were deleted (docs/capi.md#orphaned-nodes). A
// kubelet that registers just before its machine is terminated leaves such a Node behind:
// Cluster API does not know it, and not every provider has a cloud controller manager.
//
// A Node is deleted only if the shard that has created its instance reports more than once that
// the instance is terminated, and lists all groups without it in between. A shard that does not
// know an instance proves nothing: the instance may belong to the shard of another operator.
package orphannode

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

const (
	// workers is the number of Nodes that are synced at once. Orphaned Nodes are rare, and
	// nothing waits for their deletion.
	workers = 1
	// unknownTimeout is the time for which a kubelet has not reported before its Node can be
	// deleted. Cluster API and cloud controller managers delete most Nodes sooner.
	unknownTimeout = 5 * time.Minute
	// recheckPeriod is the time between two checks of a Node that cannot be deleted. A shard
	// remembers a terminated instance for deleted_record_retention, 30 minutes by default.
	recheckPeriod = 5 * time.Minute
	// listPeriod is the time between two checks whether a shard has listed its groups.
	listPeriod = 2 * time.Second
	// confirmations is the number of complete lists without the instance, each of which began
	// after the one before was complete.
	confirmations = 2
)

// Controller deletes orphaned Nodes. The keys of its queue are the names of Nodes.
type Controller struct {
	controller.Registrations

	namespace   string
	clusterName string

	nodes        cache.Indexer
	owners       *controllers.Nodes
	clusters     listers.ResourceIndexer[*clusterv1.Cluster]
	client       kubernetes.Interface
	nstance      clientset.InfrastructureV1beta1Interface
	capi         *capi.Client
	shards       shard.Set
	groups       shard.Groups
	shardClient  shard.Client
	recorder     events.EventRecorder
	clock        clock.PassiveClock
	queue        *controller.Queue[string]
	nodesDeleted prometheus.Counter

	mu sync.Mutex
	// proofs are what shards have confirmed so far, by the names of Nodes.
	proofs map[string]*proof
}

// proof is what the shard of an instance has confirmed about it. It is kept in memory only:
// another process begins again.
type proof struct {
	// uid is the UID of the Node. Another Node of the same name needs another proof.
	uid types.UID
	// shard has reported that the instance is terminated. mark is the list of its groups that is
	// awaited.
	shard string
	mark  uint64
	// lists is the number of complete lists without the instance.
	lists int
}

// New returns the controller and registers its handlers.
func New(d controllers.Dependencies) (*Controller, error) {
	owners, err := controllers.NewNodes(&d)
	if err != nil {
		return nil, err
	}
	c := &Controller{
		namespace:   d.Namespace,
		clusterName: d.ClusterName,
		nodes:       d.Informers.Nodes.GetIndexer(),
		owners:      owners,
		clusters:    d.Informers.Clusters.Lister(),
		client:      d.Workload.Kube,
		nstance:     d.Nstance,
		capi:        d.CAPI,
		shards:      d.Shards,
		groups:      d.Groups,
		shardClient: d.ShardClient,
		recorder:    d.Recorder,
		clock:       d.Clock,
		nodesDeleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nstance_operator_orphan_nodes_deleted_total",
			Help: "Nodes that the operator deleted because the shard confirmed that their instances are terminated.",
		}),
		proofs: map[string]*proof{},
	}
	d.Metrics.MustRegister(c.nodesDeleted)
	c.queue = controller.NewQueue("orphannode", c.sync)
	c.queue.SeedWith(c.keys)
	c.Registrations, err = controller.Watch(
		controller.Watched{What: "Nodes", Informer: d.Informers.Nodes, Indexers: indexers, Handler: controller.OnChange(c.nodeChanged)},
	)
	d.Groups.AddHandler(shard.GroupHandler{OnShard: c.shardChanged})
	return c, err
}

// Run deletes Nodes until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }

// candidates indexes the Nodes that may be orphaned, all under candidate: a change of a shard visits
// them, and not all Nodes.
const (
	candidates = "orphannode.candidates"
	candidate  = "candidate"
)

var indexers = cache.Indexers{candidates: func(obj any) ([]string, error) {
	if node, ok := obj.(*corev1.Node); ok && mayBeOrphaned(node) {
		return []string{candidate}, nil
	}
	return nil, nil
}}

// keys returns the names of the Nodes that may be orphaned.
func (c *Controller) keys() []string {
	nodes := controller.Indexed[corev1.Node](c.nodes, candidates, candidate)
	names := make([]string, len(nodes))
	for n, node := range nodes {
		names[n] = node.Name
	}
	return names
}

// nodeChanged enqueues a Node that may be orphaned, and a Node that no longer may.
func (c *Controller) nodeChanged(before, after *corev1.Node) {
	switch {
	case after == nil:
		c.forget(before.Name)
	case mayBeOrphaned(after) && (before == nil || !mayBeOrphaned(before)):
		c.queue.Add(after.Name)
	case before != nil && mayBeOrphaned(before) && !mayBeOrphaned(after):
		c.forget(after.Name)
	}
}

// shardChanged discards what a shard has confirmed when its connection is lost or established:
// it may be another process now, with another storage. A shard that could not be asked before is
// asked at once.
func (c *Controller) shardChanged(id string) {
	c.mu.Lock()
	maps.DeleteFunc(c.proofs, func(_ string, p *proof) bool { return p.shard == id })
	c.mu.Unlock()
	for _, name := range c.keys() {
		c.queue.Add(name)
	}
}

func (c *Controller) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.proofs, name)
}

func (c *Controller) set(name string, p proof) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proofs[name] = &p
}

// get returns a copy of what a shard has confirmed about the instance of a Node, nil if no shard
// has confirmed anything.
func (c *Controller) get(node *corev1.Node) *proof {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.proofs[node.Name]; p != nil && p.uid == node.UID {
		copied := *p
		return &copied
	}
	return nil
}
