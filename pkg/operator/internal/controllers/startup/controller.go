// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package startup measures how long managed instances take until they run, and until their
// Nodes are Ready. Both times begin with the first report of the instance by its shard, by the
// clock of the operator.
package startup

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// Values of the label stage.
const (
	stageRunning   = "running"
	stageNodeReady = "node_ready"
)

// Controller measures the instances that shards report while it runs. An instance that existed
// before a shard was connected is not measured, because the time of its request is not known.
type Controller struct {
	controller.Registrations

	shards    shard.Set
	groups    shard.Groups
	nodes     *controllers.Nodes
	clock     clock.PassiveClock
	durations *prometheus.HistogramVec

	mu    sync.Mutex
	known map[string]*shardState
	// waiting are the running instances whose Nodes are not Ready, by the key of their
	// provider id.
	waiting map[string][]*instance
}

// shardState has the instances of a shard.
type shardState struct {
	// complete reports whether the cache has every instance that existed when the shard was
	// connected. Any other instance was created later.
	complete bool
	// groups has the instances of each group by id; the value is nil for an instance that is
	// not or no longer measured.
	groups map[string]map[string]*instance
}

// instance is an instance that is being measured.
type instance struct {
	shard      string
	since      time.Time
	providerID string
	running    bool
	done       bool
}

// New returns the controller and registers its handlers.
func New(d controllers.Dependencies) (*Controller, error) {
	nodes, err := controllers.NewNodes(&d)
	if err != nil {
		return nil, err
	}
	c := &Controller{
		shards: d.Shards,
		groups: d.Groups,
		nodes:  nodes,
		clock:  d.Clock,
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nstance_operator_instance_startup_duration_seconds",
			Help:    "Time from the first report of a managed instance by its shard until it runs (stage running), and until its Node is Ready (stage node_ready), by shard.",
			Buckets: []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600},
		}, []string{"shard", "stage"}),
		known:   map[string]*shardState{},
		waiting: map[string][]*instance{},
	}
	d.Metrics.MustRegister(c.durations)
	c.Registrations, err = controller.Watch(
		controller.Watched{What: "Nodes", Informer: d.Informers.Nodes, Handler: controller.OnChange(c.nodeChanged)},
	)
	d.WatchShards(c.shardChanged, c.groupChanged)
	return c, err
}

// Run returns when ctx is done. The event handlers do all the work.
func (c *Controller) Run(ctx context.Context) { <-ctx.Done() }

// shardChanged is called after groupChanged was called for each group of a list.
func (c *Controller) shardChanged(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setShard(id, c.shards.Has(id))
	if !c.shards.Has(id) {
		if state, ok := c.known[id]; ok {
			for _, instances := range state.groups {
				c.forget(instances, nil)
			}
			delete(c.known, id)
		}
		return
	}
	reachable, _ := c.groups.Reachable(id)
	c.state(id).complete = reachable
}

// setShard creates the series of a configured shard and deletes the series of any other. A
// histogram starts at 0, because Prometheus cannot compute a rate from a missing value.
func (c *Controller) setShard(id string, configured bool) {
	for _, stage := range []string{stageRunning, stageNodeReady} {
		if configured {
			c.durations.WithLabelValues(id, stage)
		} else {
			c.durations.DeleteLabelValues(id, stage)
		}
	}
}

func (c *Controller) groupChanged(id, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// The group is read with the lock held: of two concurrent calls, the later call must read
	// the newer group.
	group, _ := c.groups.Get(id, key)
	state := c.state(id)
	before, after := state.groups[key], make(map[string]*instance, len(group.Instances))
	for _, reported := range group.Instances {
		measured, found := before[reported.ID]
		if !found && state.complete {
			measured = &instance{shard: id, since: c.clock.Now()}
		}
		if measured != nil {
			c.observe(measured, reported)
			if measured.done {
				measured = nil
			}
		}
		after[reported.ID] = measured
	}
	c.forget(before, after)
	if state.groups[key] = after; len(after) == 0 {
		delete(state.groups, key)
	}
}

func (c *Controller) state(id string) *shardState {
	state, ok := c.known[id]
	if !ok {
		state = &shardState{groups: map[string]map[string]*instance{}}
		c.known[id] = state
	}
	return state
}

// observe measures an instance whose state was reported.
func (c *Controller) observe(i *instance, reported shard.Instance) {
	if i.running || reported.State != shard.InstanceRunning || reported.ProviderID == "" {
		return
	}
	i.running, i.providerID = true, reported.ProviderID
	c.measure(i, stageRunning)
	nodes := c.nodes.WithProviderID(i.providerID)
	if len(nodes) == 1 && isReady(nodes[0]) {
		c.nodeReady(i)
		return
	}
	key := providerid.Key(i.providerID)
	c.waiting[key] = append(c.waiting[key], i)
}

func (c *Controller) nodeChanged(_, node *corev1.Node) {
	if node == nil || node.Spec.ProviderID == "" || !isReady(node) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range slices.Clone(c.waiting[providerid.Key(node.Spec.ProviderID)]) {
		if providerid.Match(i.providerID, node.Spec.ProviderID) {
			c.nodeReady(i)
		}
	}
}

func (c *Controller) nodeReady(i *instance) {
	c.measure(i, stageNodeReady)
	i.done = true
	c.stopWaiting(i)
}

func (c *Controller) measure(i *instance, stage string) {
	c.durations.WithLabelValues(i.shard, stage).Observe(c.clock.Since(i.since).Seconds())
}

// forget stops measuring the instances that are not in present.
func (c *Controller) forget(instances, present map[string]*instance) {
	for id, i := range instances {
		if _, found := present[id]; !found && i != nil {
			c.stopWaiting(i)
		}
	}
}

func (c *Controller) stopWaiting(i *instance) {
	key := providerid.Key(i.providerID)
	others := slices.DeleteFunc(c.waiting[key], func(other *instance) bool { return other == i })
	if c.waiting[key] = others; len(others) == 0 {
		delete(c.waiting, key)
	}
}

func isReady(node *corev1.Node) bool {
	return controllers.ReadyCondition(node).Status == corev1.ConditionTrue
}
