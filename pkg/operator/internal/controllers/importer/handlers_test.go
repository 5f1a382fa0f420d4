// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"slices"
	"testing"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

func TestHandlersEnqueueGroups(t *testing.T) {
	all := []string{"main at 0s", "workers at 0s"}
	settled := []string{"main at 5s", "workers at 5s"}
	pool := newPool("main", "main", "a")
	tests := map[string]struct {
		change func(*Controller)
		want   []string
	}{
		"a cached group changes": {func(c *Controller) { c.groupChanged("a", "main") }, []string{"main at 5s"}},
		"a shard changes, which matters to every group": {func(c *Controller) {
			c.shardChanged("a")
		}, settled},
		"a shard was removed from the configuration": {func(c *Controller) { c.shardChanged("removed") }, settled},

		"a pool is added": {func(c *Controller) { c.poolChanged(nil, newPool("other", "main", "a")) }, []string{"main at 5s"}},
		"a pool's spec changes": {func(c *Controller) {
			after := pool.DeepCopy()
			after.Generation++
			c.poolChanged(pool, after)
		}, []string{"main at 5s"}},
		"a pool's status changes": {func(c *Controller) { c.poolChanged(pool, pool.DeepCopy()) }, nil},
		"a pool is deleted, which frees its group and its name": {func(c *Controller) {
			c.poolChanged(newPool("workers", "main", "a"), nil)
		}, []string{"main at 5s", "workers at 5s"}},

		"a shard group is deleted": {func(c *Controller) { c.shardGroupChanged(controllertest.NewShardGroup(pool, "a"), nil) }, []string{"main at 5s"}},
		"a shard group is added":   {func(c *Controller) { c.shardGroupChanged(nil, controllertest.NewShardGroup(pool, "a")) }, nil},
		"a shard group is resynced": {func(c *Controller) {
			c.shardGroupChanged(controllertest.NewShardGroup(pool, "a"), controllertest.NewShardGroup(pool, "a"))
		}, nil},
		"a MachinePool that a group waits for is deleted": {func(c *Controller) {
			c.machinePoolChanged(controllertest.Deleting(controllertest.NewMachinePool("other", "main")), nil)
		}, []string{"main at 0s"}},
		"a MachinePool that is being deleted refers to another pool": {func(c *Controller) {
			c.machinePoolChanged(controllertest.Deleting(controllertest.NewMachinePool("other", "main")), controllertest.Deleting(controllertest.NewMachinePool("other", "another")))
		}, []string{"main at 0s"}},
		"a MachinePool is being deleted": {func(c *Controller) {
			c.machinePoolChanged(controllertest.NewMachinePool("main", "main"), controllertest.Deleting(controllertest.NewMachinePool("main", "main")))
			c.machinePoolChanged(controllertest.Deleting(controllertest.NewMachinePool("main", "main")), controllertest.Deleting(controllertest.NewMachinePool("main", "main")))
		}, nil},
		"a MachinePool that no group waits for": {func(c *Controller) {
			c.machinePoolChanged(nil, controllertest.NewMachinePool("main", "main"))
			c.machinePoolChanged(controllertest.NewMachinePool("main", "main"), controllertest.NewMachinePool("main", "main"))
			c.machinePoolChanged(controllertest.NewMachinePool("main", "main"), nil)
		}, nil},

		"the Cluster is no longer paused": {func(c *Controller) {
			c.clusterChanged(controllertest.PausedCluster(controllertest.NewCluster()), controllertest.NewCluster())
		}, all},
		"the Cluster was deleted": {func(c *Controller) { c.clusterChanged(controllertest.Deleting(controllertest.NewCluster()), nil) }, all},
		"the Cluster blocks imports": {func(c *Controller) {
			c.clusterChanged(nil, controllertest.NewCluster())
			c.clusterChanged(controllertest.NewCluster(), controllertest.PausedCluster(controllertest.NewCluster()))
			c.clusterChanged(controllertest.NewCluster(), controllertest.Deleting(controllertest.NewCluster()))
			c.clusterChanged(controllertest.NewCluster(), controllertest.NewCluster())
			c.clusterChanged(controllertest.PausedCluster(controllertest.NewCluster()), controllertest.Deleting(controllertest.NewCluster()))
		}, nil},
		"another Cluster": {func(c *Controller) {
			c.clusterChanged(controllertest.PausedCluster(anotherCluster()), anotherCluster())
		}, nil},
	}
	h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1)), "b": unknown(false, false, static(1), shard.Group{Key: "workers"})})
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			enqueued := controllertest.Enqueued(t, &h.controller.queue, func() { test.change(h.controller) })
			if !slices.Equal(enqueued, test.want) {
				t.Errorf("enqueued %q, want %q", enqueued, test.want)
			}
		})
	}
}
