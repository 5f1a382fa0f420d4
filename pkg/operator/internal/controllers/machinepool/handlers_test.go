// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

func TestChangesEnqueuePools(t *testing.T) {
	pool := newPool("a", "b")
	group := func(version string, change func(*v1beta1.NstanceShardGroup)) *v1beta1.NstanceShardGroup {
		made := ready(newShardGroup(pool, "a", 2), "i-1")
		made.ResourceVersion = version
		if change != nil {
			change(made)
		}
		return made
	}
	elsewhere := func(version string) *clusterv1.MachinePool {
		made := machinePool("workers", ptr.To[int32](1))
		made.ResourceVersion = version
		made.Spec.Template.Spec.InfrastructureRef.Kind = "DockerMachinePool"
		return made
	}
	replicas := func(version string, n int32) *clusterv1.MachinePool {
		made := machinePool("other", &n)
		made.ResourceVersion = version
		return made
	}
	tests := map[string]struct {
		change func(*Controller)
		want   []string
	}{
		"a new spec, at once": {func(c *Controller) {
			after := pool.DeepCopy()
			after.Generation++
			c.poolChanged(pool, after)
		}, []string{"workers at 0s"}},
		"a new status, which is our own, enqueues nothing": {func(c *Controller) {
			after := pool.DeepCopy()
			after.ResourceVersion = "another"
			c.poolChanged(pool, after)
		}, nil},
		"a resync": {func(c *Controller) {
			c.poolChanged(pool, pool.DeepCopy())
		}, []string{"workers at 0s"}},
		"an owner, at once": {func(c *Controller) {
			after := pool.DeepCopy()
			after.ResourceVersion, after.OwnerReferences = "another", []metav1.OwnerReference{{Kind: "MachinePool", Name: "workers", UID: "uid"}}
			c.poolChanged(pool, after)
		}, []string{"workers at 0s"}},
		"a label, at once": {func(c *Controller) {
			after := pool.DeepCopy()
			after.ResourceVersion, after.Labels = "another", map[string]string{"a": "b"}
			c.poolChanged(pool, after)
		}, []string{"workers at 0s"}},
		"a new shard group": {func(c *Controller) {
			c.shardGroupChanged(nil, group("1", nil))
		}, []string{"workers at 2s"}},
		"a deleted shard group": {func(c *Controller) {
			c.shardGroupChanged(group("1", nil), nil)
		}, []string{"workers at 0s"}},
		"one more instance, in a batch": {func(c *Controller) {
			c.shardGroupChanged(group("1", nil), group("2", func(g *v1beta1.NstanceShardGroup) { g.Status.ProviderIDs = nil }))
		}, []string{"workers at 2s"}},
		"a report without a relevant change enqueues nothing": {func(c *Controller) {
			c.shardGroupChanged(group("1", nil), group("2", func(g *v1beta1.NstanceShardGroup) { g.Status.LastSyncTime = ptr.To(metav1.Now()) }))
		}, nil},
		"a resync of a shard group": {func(c *Controller) {
			c.shardGroupChanged(group("1", nil), group("1", nil))
		}, []string{"workers at 2s"}},
		"a shard group without an owner": {func(c *Controller) {
			c.shardGroupChanged(nil, group("1", func(g *v1beta1.NstanceShardGroup) { g.OwnerReferences = nil }))
		}, []string{"workers at 2s"}},
		"a shard group that loses its owner": {func(c *Controller) {
			c.shardGroupChanged(group("1", nil), group("2", func(g *v1beta1.NstanceShardGroup) { g.OwnerReferences = nil }))
		}, []string{"workers at 2s"}},
		"other replicas, at once": {func(c *Controller) {
			c.machinePoolChanged(replicas("1", 3), replicas("2", 4))
		}, []string{"other at 0s", "workers at 0s"}},
		"a MachinePool's own status enqueues nothing": {func(c *Controller) {
			c.machinePoolChanged(replicas("1", 3), replicas("2", 3))
		}, nil},
		"the cluster autoscaler is enabled, at once": {func(c *Controller) {
			after := replicas("2", 3)
			after.Annotations = map[string]string{clusterv1.AutoscalerMinSizeAnnotation: "0", clusterv1.AutoscalerMaxSizeAnnotation: "9"}
			c.machinePoolChanged(replicas("1", 3), after)
		}, []string{"other at 0s", "workers at 0s"}},
		"a deleted MachinePool of the same name that refers to another object": {func(c *Controller) {
			c.machinePoolChanged(elsewhere("1"), nil)
		}, []string{"workers at 0s"}},
		"a MachinePool that now refers to another object": {func(c *Controller) {
			after := elsewhere("2")
			after.Name = "other"
			c.machinePoolChanged(replicas("1", 1), after)
		}, []string{"other at 0s", "workers at 0s"}},
		"the Node of an instance": {func(c *Controller) {
			c.nodeChanged(nil, node("one", "aws:///us-west-2a/i-1"))
		}, []string{"workers at 2s"}},
		"a Node gets its provider id": {func(c *Controller) {
			c.nodeChanged(node("one", ""), node("one", "i-1"))
		}, []string{"workers at 2s"}},
		"another Node enqueues nothing": {func(c *Controller) {
			c.nodeChanged(nil, node("one", "aws:///us-west-2a/i-9"))
			c.nodeChanged(nil, node("two", ""))
		}, nil},
		"a Node's heartbeat enqueues nothing": {func(c *Controller) {
			c.nodeChanged(node("one", "i-1"), node("one", "i-1"))
		}, nil},
		"the last NstanceMachine is deleted": {func(c *Controller) {
			removed, _ := newInstance("a1", "a", nil)
			c.nstanceMachineChanged(removed, nil)
		}, []string{"workers at 0s"}},
		"a new status of an NstanceMachine enqueues nothing": {func(c *Controller) {
			before, _ := newInstance("a1", "a", nil)
			after, _ := newInstance("a1", "a", nil)
			c.nstanceMachineChanged(before, after)
			c.nstanceMachineChanged(nil, after)
			c.nstanceMachineChanged(&v1beta1.NstanceMachine{}, nil)
		}, nil},
		"the capabilities of a server, once": {func(c *Controller) {
			c.groups = withGroups(map[string]*shard.Group{"a": listed("a1")}).Groups()
			c.groupChanged("a", "workers")
			c.groups = withGroups(map[string]*shard.Group{"a": listed("a1", "a2")}).Groups()
			c.groupChanged("a", "workers")
			c.groupChanged("a", "others")
		}, []string{"workers at 2s"}},
		"the shape of its Nodes": {func(c *Controller) {
			c.groups = withGroups(map[string]*shard.Group{"a": {Key: "workers", Shape: &shard.NodeShape{Architecture: "arm64"}}}).Groups()
			c.groupChanged("a", "workers")
		}, []string{"workers at 2s"}},
		"a shard of the pool": {func(c *Controller) { c.shardChanged("b") }, []string{"workers at 0s"}},
		"another shard enqueues nothing": {func(c *Controller) {
			c.shardChanged("c")
		}, nil},
	}
	h := newHarness(t, withSizes(map[string]int32{}), pool.DeepCopy(), group("", nil))
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h.controller.lastReported = lastReported{}
			enqueued := controllertest.Enqueued(t, &h.controller.queue, func() { test.change(h.controller) })
			if !slices.Equal(enqueued, test.want) {
				t.Errorf("enqueued %q, want %q", enqueued, test.want)
			}
		})
	}
}

func TestRelevantChange(t *testing.T) {
	pool := newPool("a")
	newGroup := func() *v1beta1.NstanceShardGroup { return newShardGroup(pool, "a", 2) }
	with := func(group *v1beta1.NstanceShardGroup, change func(*v1beta1.NstanceShardGroup)) *v1beta1.NstanceShardGroup {
		change(group)
		return group
	}
	tests := map[string]struct {
		before, after *v1beta1.NstanceShardGroup
		want          bool
	}{
		"nothing": {ready(newGroup(), "i-1"), ready(newGroup(), "i-1"), false},
		"the time of the last sync": {
			ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Status.LastSyncTime = ptr.To(metav1.Now()) }), false,
		},
		"another instance": {ready(newGroup(), "i-1"), ready(newGroup(), "i-2"), true},
		"more replicas": {
			running(ready(newGroup()), 0), running(ready(newGroup()), 1), true,
		},
		"a drain": {
			ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Status.DrainingReplicas = ptr.To[int32](1) }), true,
		},
		"a drain that is blocked": {
			ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Status.BlockedReplicas = ptr.To[int32](1) }), true,
		},
		"the reason of a blocked drain": {
			ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) {
				condition(g, v1beta1.ConditionDrainsProgressing, metav1.ConditionFalse, "DrainBlocked", "a Pod")
			}), false,
		},
		"static": {
			ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Status.IsStatic = ptr.To(true) }), true,
		},
		"another configuration": {
			ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Status.Config = &v1beta1.GroupConfig{Template: "x"} }), true,
		},
		"it is ready":                  {notReady(newGroup(), "ProviderError", "oops"), ready(newGroup()), true},
		"it was rejected":              {ready(newGroup()), notReady(newGroup(), "ConfigRejected", "no"), true},
		"another rejection":            {notReady(newGroup(), "ConfigRejected", "no"), notReady(newGroup(), "ConfigRejected", "never"), true},
		"its shard became unreachable": {ready(newGroup()), away(ready(newGroup())), true},
		"it has seen a later spec":     {ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Status.ObservedGeneration++ }), false},
		"its labels were removed":      {ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Labels = nil }), true},
		"its finalizer was removed":    {ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.Finalizers = nil }), true},
		"its owner was removed":        {ready(newGroup()), with(ready(newGroup()), func(g *v1beta1.NstanceShardGroup) { g.OwnerReferences = nil }), true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := relevantChange(test.before, test.after); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// One of three shards of 1,000 pools dies, which changes the status of all of them. Pools on the
// other shards are scaled meanwhile.
func TestScalingDoesNotWaitBehindTheShardThatDied(t *testing.T) {
	const count, scaled = 1000, 12
	var objects []runtime.Object
	for n := range count + scaled {
		pool := newPool("a", "b")
		if n < count {
			pool = newPool("a", "b", "dead")
		}
		pool.Name = fmt.Sprint("pool-", n)
		pool.UID, pool.Spec.Group = types.UID(pool.Name), v1beta1.Identifier(pool.Name)
		objects = append(objects, pool)
	}
	h := newHarness(t, withSizes(map[string]int32{"a": 0, "b": 0, "dead": 0}), objects...)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var synced []string
		h.controller.queue = controller.NewQueue("test", func(_ context.Context, key cache.ObjectName) (time.Duration, error) {
			time.Sleep(20 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			synced = append(synced, key.Name)
			return 0, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		done := make(chan struct{})
		go func() { defer close(done); h.controller.queue.Run(ctx, workers) }()
		synctest.Wait()

		h.controller.shardChanged("dead")
		// No sync ends at that time.
		time.Sleep(210 * time.Millisecond)
		mu.Lock()
		before := len(synced)
		mu.Unlock()
		for n := range scaled {
			name := fmt.Sprint("pool-", count+n)
			was, is := machinePool(name, ptr.To[int32](3)), machinePool(name, ptr.To[int32](6))
			for version, machinePool := range map[string]*clusterv1.MachinePool{"1": was, "2": is} {
				machinePool.ResourceVersion = version
				machinePool.Spec.Template.Spec.InfrastructureRef.Name = name
			}
			h.controller.machinePoolChanged(was, is)
		}
		<-done
		assert.Len(t, synced, count+scaled)
		for n := range scaled {
			at := slices.Index(synced, fmt.Sprint("pool-", count+n)) - before
			// Each worker may be busy, and every fourth sync is of another pool.
			assert.LessOrEqual(t, at, workers+scaled*4/3, "syncs before scaled pool %d", n)
		}
	})
}

// The provider ids that the operator writes into the specs of pools do not stand before what users change.
func TestChangedByUser(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1beta1.NstanceMachinePool)
		want   bool
	}{
		"provider ids": {func(pool *v1beta1.NstanceMachinePool) { pool.Spec.ProviderIDList = []string{"kwok:///a/1"} }, false},
		"shards":       {func(pool *v1beta1.NstanceMachinePool) { pool.Spec.Shards = []v1beta1.Identifier{"a"} }, true},
		"deletion":     {func(pool *v1beta1.NstanceMachinePool) { pool.DeletionTimestamp = ptr.To(metav1.Now()) }, true},
	} {
		before := newPool("a", "b")
		after := before.DeepCopy()
		assert.False(t, changedByUser(before, after), name)
		test.change(after)
		after.Generation++
		assert.Equal(t, test.want, changedByUser(before, after), name)
	}
}
