// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

const (
	// nodelessAfter is how long an instance runs without a Node before that is a problem: a kubelet
	// registers within seconds.
	nodelessAfter = 5 * time.Minute
	// maxListedNodeless is the number of instances that the condition NodesJoined names.
	maxListedNodeless = 3
)

// nodeless are the instances of a pool that run without a Node.
type nodeless struct {
	// known is false while the Nodes are not known.
	known bool
	// late are the instances that have no Node for long, in the order of their ids.
	late []nodelessInstance
	// wait is when another instance will be late, zero for never.
	wait time.Duration
}

// nodelessInstance is an instance that runs without a Node.
type nodelessInstance struct{ id, shard, providerID string }

// problem is why the pool is not ready, nil if all late instances have a Node.
func (n nodeless) problem() *problem {
	if len(n.late) == 0 {
		return nil
	}
	var named []string
	for _, i := range n.late[:min(len(n.late), maxListedNodeless)] {
		named = append(named, fmt.Sprintf("instance %s on shard %s has no Node with the provider id %q", i.id, i.shard, i.providerID))
	}
	if more := len(n.late) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("and %d more", more))
	}
	return &problem{v1beta1.ReasonNodeMissing, strings.Join(named, "; ")}
}

// nodelessTimes remembers since when instances run without a Node. It is kept in memory only:
// another process begins again.
type nodelessTimes struct {
	mu    sync.Mutex
	pools map[cache.ObjectName]nodelessPool
}

// nodelessPool has the times by provider id.
type nodelessPool struct {
	uid   types.UID
	since map[string]time.Time
}

// observe returns the instances without a Node, of which without are all.
func (t *nodelessTimes) observe(pool cache.ObjectName, uid types.UID, without []nodelessInstance, now time.Time) nodeless {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.pools[pool]
	delete(t.pools, pool)
	found := nodeless{known: true}
	if len(without) == 0 {
		return found
	}
	next := nodelessPool{uid: uid, since: make(map[string]time.Time, len(without))}
	for _, i := range without {
		since, was := before.since[i.providerID]
		if !was || before.uid != uid {
			since = now
		}
		next.since[i.providerID] = since
		switch left := since.Add(nodelessAfter).Sub(now); {
		case left <= 0:
			found.late = append(found.late, i)
		case found.wait == 0 || left < found.wait:
			found.wait = left
		}
	}
	slices.SortFunc(found.late, func(a, b nodelessInstance) int { return strings.Compare(a.id, b.id) })
	if t.pools == nil {
		t.pools = map[cache.ObjectName]nodelessPool{}
	}
	t.pools[pool] = next
	return found
}

// drop forgets the instances of a pool.
func (t *nodelessTimes) drop(pool cache.ObjectName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pools, pool)
}

// forgetNodeless forgets the instances of a pool that run without a Node.
func (c *Controller) forgetNodeless(pool cache.ObjectName) {
	c.nodeless.drop(pool)
	c.nodelessMetric.DeleteLabelValues(pool.Name)
}

// newNodelessMetric returns the metric of observeNodeless.
func newNodelessMetric(registry prometheus.Registerer) *prometheus.GaugeVec {
	metric := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "nstance_operator_instances_without_node",
		Help: fmt.Sprintf("Instances that have run without a Node for %s.", nodelessAfter),
	}, []string{"pool"})
	registry.MustRegister(metric)
	return metric
}

// observeNodeless returns the instances of a pool that run without a Node. Nothing is known while
// the cache of Nodes may lack some.
func (c *Controller) observeNodeless(pool *v1beta1.NstanceMachinePool, shards []shardState) nodeless {
	key := cache.MetaObjectToName(pool)
	if !c.nodesSynced() || c.NodesReachable != nil && !c.NodesReachable() {
		c.forgetNodeless(key)
		return nodeless{}
	}
	var without []nodelessInstance
	for _, s := range shards {
		// An instance whose shard is not connected may have ended.
		if s.reported == nil || !s.reachable || !s.synced {
			continue
		}
		for _, i := range s.reported.Instances {
			if i.State == shard.InstanceRunning && i.ProviderID != "" && !s.draining.Has(i.ID) && len(c.nodes.WithProviderID(i.ProviderID)) == 0 {
				without = append(without, nodelessInstance{i.ID, s.id, i.ProviderID})
			}
		}
	}
	found := c.nodeless.observe(key, pool.UID, without, c.clock.Now())
	if len(found.late) == 0 {
		c.nodelessMetric.DeleteLabelValues(pool.Name)
	} else {
		c.nodelessMetric.WithLabelValues(pool.Name).Set(float64(len(found.late)))
	}
	return found
}
