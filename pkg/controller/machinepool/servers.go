// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"sync"

	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

// servers remembers what a pool takes straight from the servers, so that it is not
// woken for all else that they report: its shard groups hand that on.
type servers struct {
	mu   sync.Mutex
	said map[cache.ObjectName]said
}

// said is what a server can do for a group, and what its Nodes will be like.
type said struct {
	lists bool
	node  *shard.NodeShape
}

// GroupChanged is to be called when the cache of a shard's groups has changed.
func (c *Controller) GroupChanged(shard, key string) {
	group, _ := c.groups.Get(shard, key)
	if !c.servers.news(cache.NewObjectName(shard, key), said{group.ListsInstances, group.Node}) {
		return
	}
	name := v1beta1.ShardGroupName(key, shard)
	object, err := c.shardGroupLister.Get(name)
	if err != nil {
		// Its pool reads what is there when it has made it.
		return
	}
	if pool := poolOf(object); pool != "" {
		c.queue.AddAfter(c.key(pool), shardGroupBatch)
	}
}

// news tells whether something else was said last.
func (s *servers) news(of cache.ObjectName, now said) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.said[of]
	if before.lists == now.lists && before.node.Equal(now.node) {
		return false
	}
	if s.said == nil {
		s.said = make(map[cache.ObjectName]said)
	}
	s.said[of] = now
	return true
}

// shapeOf is what a Node of a pool will be like, nil when nothing is to be said
// about it: no shard tells, or not all of them can be asked and something was told
// before. The one that is missing may have less than the others, or taints.
func shapeOf(seen observation) *shard.NodeShape {
	told := seen.pool.Status.Capacity != nil || seen.pool.Status.NodeInfo != v1beta1.NodeInfo{}
	var shapes []*shard.NodeShape
	for _, state := range seen.shards {
		if state.reported == nil && told {
			return nil
		}
		if state.reported != nil {
			shapes = append(shapes, state.reported.Node)
		}
	}
	return nodeShape(shapes)
}
