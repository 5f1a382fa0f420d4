// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// withSizes returns shards whose servers have the group "workers" with these sizes,
// or none if the size is 0.
func withSizes(sizes map[string]int32) *shardtest.Shards {
	groups := map[string]*shard.Group{}
	for id, size := range sizes {
		groups[id] = nil
		if size > 0 {
			groups[id] = &shard.Group{Key: "workers", Size: size}
		}
	}
	return withGroups(groups)
}

// withGroups returns shards whose servers report these groups, nil for none.
func withGroups(groups map[string]*shard.Group) *shardtest.Shards {
	shards := shardtest.New()
	for id, group := range groups {
		shards.ByID[id] = shardtest.NewShard()
		if group != nil {
			shards.SetGroup(id, *group)
		}
	}
	return shards
}

// harness is a controller whose caches show what the test wants.
type harness struct {
	*controllertest.Harness
	controller *Controller
}

// newHarness returns a controller with objects in its caches.
func newHarness(t *testing.T, shards *shardtest.Shards, objects ...runtime.Object) *harness {
	t.Helper()
	h := &harness{Harness: controllertest.NewHarness(t, shards, objects...)}
	var err error
	h.controller, err = New(h.Dependencies)
	require.NoError(t, err)
	h.Show()
	return h
}

// scale sets the replicas of the pool's MachinePool in the cache.
func (h *harness) scale(replicas int32) {
	h.T.Helper()
	h.Put(h.Informers.MachinePools, machinePool("workers", &replicas))
}

// sync syncs the pool once and returns the writes of our kinds, sorted.
func (h *harness) sync() (writes []string, requeue time.Duration, err error) {
	requeue, err = h.controller.sync(h.Ctx, controllertest.Key("workers"))
	writes = h.Writes()
	slices.Sort(writes)
	return writes, requeue, err
}

// expect syncs the pool once, without an error, and compares the writes.
func (h *harness) expect(want ...string) {
	h.T.Helper()
	got, _, err := h.sync()
	require.NoError(h.T, err)
	assert.Equal(h.T, want, got, "wrote")
}

// report changes the status of a shard group as its own controller does.
func (h *harness) report(shard string, change func(*v1beta1.NstanceShardGroup)) {
	h.T.Helper()
	controllertest.Change(h.API, v1beta1.ShardGroupName("workers", shard), change)
	h.Show()
}

// deleteShardGroup deletes a shard group from the API server and the caches.
func (h *harness) deleteShardGroup(shard string) {
	h.T.Helper()
	controllertest.Remove[*v1beta1.NstanceShardGroup](h.API, v1beta1.ShardGroupName("workers", shard))
	h.Show()
}

// updatePool changes the pool on the API server and in the caches.
func (h *harness) updatePool(change func(*v1beta1.NstanceMachinePool)) {
	h.T.Helper()
	controllertest.Change(h.API, "workers", change)
	h.Show()
}

func (h *harness) pool() *v1beta1.NstanceMachinePool {
	return controllertest.Get[*v1beta1.NstanceMachinePool](h.API, "workers")
}

func (h *harness) shardGroup(shard string) *v1beta1.NstanceShardGroup {
	return controllertest.Get[*v1beta1.NstanceShardGroup](h.API, v1beta1.ShardGroupName("workers", shard))
}

// expectSizes compares the sizes of shard groups.
func (h *harness) expectSizes(sizes map[string]int32) {
	h.T.Helper()
	for shard, size := range sizes {
		if got := h.shardGroup(shard).Spec; got.Size != size {
			h.T.Errorf("shard %s has size %d and removes %q first, want size %d", shard, got.Size, got.RemoveFirst, size)
		}
	}
}
