// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/shard"
)

func TestWhatWakesWhichGroupWhen(t *testing.T) {
	all := []string{"main at 0s", "workers at 0s"}
	settled := []string{"main at 5s", "workers at 5s"}
	pool := newPool("main", "main", "a")
	tests := map[string]struct {
		change func(*Controller)
		want   []string
	}{
		"a group changes, with whatever follows": {func(c *Controller) { c.GroupChanged("a", "main") }, []string{"main at 5s"}},
		"a shard changes, of which every group's sum may be made": {func(c *Controller) {
			c.ShardChanged("a")
		}, settled},
		"a shard that is not configured any more": {func(c *Controller) { c.ShardChanged("gone") }, settled},

		"a pool appears": {func(c *Controller) { c.poolChanged(nil, newPool("other", "main", "a")) }, []string{"main at 5s"}},
		"a pool's spec changes": {func(c *Controller) {
			after := pool.DeepCopy()
			after.Generation++
			c.poolChanged(pool, after)
		}, []string{"main at 5s"}},
		"a pool's status wakes nothing": {func(c *Controller) { c.poolChanged(pool, pool.DeepCopy()) }, nil},
		"a pool goes, and leaves its group and its name": {func(c *Controller) {
			c.poolChanged(newPool("workers", "main", "a"), nil)
		}, []string{"main at 5s", "workers at 5s"}},

		"a shard group goes":          {func(c *Controller) { c.shardGroupChanged(newShardGroup(pool, "a"), nil) }, []string{"main at 5s"}},
		"a shard group that is there": {func(c *Controller) { c.shardGroupChanged(nil, newShardGroup(pool, "a")) }, nil},
		"a shard group that stays":    {func(c *Controller) { c.shardGroupChanged(newShardGroup(pool, "a"), newShardGroup(pool, "a")) }, nil},
		"a MachinePool that went is awaited": {func(c *Controller) {
			c.machinePoolChanged(leaving(newMachinePool("other", "main")), nil)
		}, []string{"main at 0s"}},
		"a MachinePool that goes refers elsewhere from now on": {func(c *Controller) {
			c.machinePoolChanged(leaving(newMachinePool("other", "main")), leaving(newMachinePool("other", "another")))
		}, []string{"main at 0s"}},
		"a MachinePool that is about to go wakes nothing": {func(c *Controller) {
			c.machinePoolChanged(newMachinePool("main", "main"), leaving(newMachinePool("main", "main")))
			c.machinePoolChanged(leaving(newMachinePool("main", "main")), leaving(newMachinePool("main", "main")))
		}, nil},
		"a MachinePool that nobody waits for wakes nothing": {func(c *Controller) {
			c.machinePoolChanged(nil, newMachinePool("main", "main"))
			c.machinePoolChanged(newMachinePool("main", "main"), newMachinePool("main", "main"))
			c.machinePoolChanged(newMachinePool("main", "main"), nil)
		}, nil},

		"the Cluster goes on": {func(c *Controller) { c.clusterChanged(paused(newCluster(clusterName)), newCluster(clusterName)) }, all},
		"the Cluster went":    {func(c *Controller) { c.clusterChanged(leaving(newCluster(clusterName)), nil) }, all},
		"the Cluster keeps everything waiting": {func(c *Controller) {
			c.clusterChanged(nil, newCluster(clusterName))
			c.clusterChanged(newCluster(clusterName), paused(newCluster(clusterName)))
			c.clusterChanged(newCluster(clusterName), leaving(newCluster(clusterName)))
			c.clusterChanged(newCluster(clusterName), newCluster(clusterName))
			c.clusterChanged(paused(newCluster(clusterName)), leaving(newCluster(clusterName)))
		}, nil},
		"another Cluster wakes nothing": {func(c *Controller) { c.clusterChanged(paused(newCluster("another")), newCluster("another")) }, nil},
	}
	h := newHarness(t, servers{"a": up(static(1)), "b": {groups: []shard.Group{static(1), {Key: "workers"}}}})
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var woken []string
				h.controller.queue = controller.NewQueue("test", func(_ context.Context, key cache.ObjectName) (time.Duration, error) {
					woken = append(woken, fmt.Sprintf("%s at %s", key.Name, time.Since(start)))
					return 0, nil
				})
				test.change(h.controller)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				h.controller.queue.Run(ctx, 1)
				slices.Sort(woken)
				if !slices.Equal(woken, test.want) {
					t.Errorf("woke %q, want %q", woken, test.want)
				}
			})
		})
	}
}
