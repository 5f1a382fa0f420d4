// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"testing"

	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// Each object prevents the import of the group "main". A change that ends this imports the group at
// once.
func TestHandlersSeeWhatASyncDependsOn(t *testing.T) {
	t.Parallel()
	leftover := controllertest.NewShardGroup(newPool("main", "main", "a"), "a")
	controllertest.ExpectSeen(t, leftover, trying(t, (*Controller).shardGroupChanged, leftover, func(h *harness) cache.SharedIndexInformer {
		return h.Informers.Nstance.NstanceShardGroups().Informer()
	}))
	machinePool := controllertest.Deleting(controllertest.NewMachinePool("main", "main"))
	controllertest.ExpectSeen(t, machinePool, trying(t, (*Controller).machinePoolChanged, machinePool, func(h *harness) cache.SharedIndexInformer {
		return h.Informers.MachinePools
	}))
	paused := controllertest.PausedCluster(controllertest.NewCluster())
	controllertest.ExpectSeen(t, paused, trying(t, (*Controller).clusterChanged, paused, func(h *harness) cache.SharedIndexInformer {
		return h.Informers.Clusters
	}))
}

// trying returns a function that changes an object in the caches of a group without a pool.
func trying[T controllertest.Object](t *testing.T, handler func(c *Controller, before, after T), before T,
	informer func(*harness) cache.SharedIndexInformer,
) func(changed T) (enqueued, did []string, err error) {
	t.Helper()
	return func(changed T) (enqueued, did []string, err error) {
		h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1))})
		h.Put(informer(h), changed)
		enqueued = controllertest.Enqueued(t, &h.controller.queue, func() { handler(h.controller, before, changed) })
		did, _, err = h.SyncStale()
		return enqueued, did, err
	}
}
