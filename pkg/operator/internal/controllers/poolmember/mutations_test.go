// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"testing"

	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// newUnsettled returns a harness of a pool with three instances on shard a: the first runs, the
// second has no NstanceMachine yet, and a scale-down has selected the third.
func newUnsettled(t *testing.T) *harness {
	t.Helper()
	pool := newPool("a")
	h := newHarness(t, byShard{"a": running("i-1", "i-2", "i-3")}, pool, newShardGroup(pool, "a", "i-3"), stored("i-1"), stored("i-3"))
	h.addMachines(newMachine("i-1"), newMachine("i-3"))
	h.Put(h.Informers.Clusters, controllertest.NewCluster())
	h.show()
	return h
}

func TestHandlersSeeWhatASyncDependsOn(t *testing.T) {
	t.Parallel()
	pool := newPool("a")
	controllertest.ExpectSeen(t, pool, trying(t, (*Controller).poolChanged, pool, func(h *harness) cache.SharedIndexInformer {
		return h.Informers.Nstance.NstanceMachinePools().Informer()
	}))
	group := newShardGroup(pool, "a", "i-3")
	controllertest.ExpectSeen(t, group, trying(t, (*Controller).shardGroupChanged, group, func(h *harness) cache.SharedIndexInformer {
		return h.Informers.Nstance.NstanceShardGroups().Informer()
	}))
	controllertest.ExpectSeen(t, newMachine("i-3"), trying(t, (*Controller).machineChanged, newMachine("i-3"), func(h *harness) cache.SharedIndexInformer {
		return h.Informers.Machines
	}), "DeletionTimestamp") // it is not deleted again
	controllertest.ExpectSeen(t, newMachinePool(), trying(t, (*Controller).machinePoolChanged, newMachinePool(), func(h *harness) cache.SharedIndexInformer {
		return h.Informers.MachinePools
	}))
	controllertest.ExpectSeen(t, controllertest.NewCluster(), trying(t, (*Controller).clusterChanged, controllertest.NewCluster(), func(h *harness) cache.SharedIndexInformer {
		return h.Informers.Clusters
	}))
}

// trying returns a function that changes an object in the cache of a pool that is not settled.
func trying[T controllertest.Object](t *testing.T, handler func(c *Controller, before, after T), before T,
	informer func(*harness) cache.SharedIndexInformer,
) func(changed T) (enqueued, did []string, err error) {
	t.Helper()
	return func(changed T) (enqueued, did []string, err error) {
		h := newUnsettled(t)
		h.Put(informer(h), changed)
		enqueued = controllertest.Enqueued(t, &h.controller.queue, func() { handler(h.controller, before, changed) })
		did, _, err = h.sync()
		return enqueued, did, err
	}
}
