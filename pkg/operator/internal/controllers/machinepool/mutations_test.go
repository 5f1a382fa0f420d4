// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// newSettled returns a harness with a pool of two shards for which nothing is to be done.
func newSettled(t *testing.T) *harness {
	t.Helper()
	pool := newPool("a", "b")
	pool.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(machinePool("workers", nil), clusterv1.GroupVersion.WithKind("MachinePool"))}
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1}), pool, ready(newShardGroup(pool, "a", 1), "i-1"), ready(newShardGroup(pool, "b", 1), "i-2"))
	h.Put(h.Informers.Clusters, controllertest.NewCluster())
	h.scale(2)
	h.settle()
	h.expect()
	return h
}

func TestHandlersSeeWhatASyncDependsOn(t *testing.T) {
	t.Parallel()
	h := newSettled(t)
	// The status is the controller's own, and the resync reverts what others write.
	controllertest.ExpectSeen(t, h.pool(), trying(t, (*Controller).poolChanged, h.pool(), func(h *harness) cache.SharedIndexInformer {
		return h.Informers.Nstance.NstanceMachinePools().Informer()
	}), "Status")
	controllertest.ExpectSeen(t, h.shardGroup("a"), trying(t, (*Controller).shardGroupChanged, h.shardGroup("a"), func(h *harness) cache.SharedIndexInformer {
		return h.Informers.Nstance.NstanceShardGroups().Informer()
	}))
	machinePool := machinePool("workers", ptr.To[int32](2))
	machinePool.ResourceVersion = "1"
	controllertest.ExpectSeen(t, machinePool, trying(t, (*Controller).machinePoolChanged, machinePool, func(h *harness) cache.SharedIndexInformer {
		return h.Informers.MachinePools
	}))
	controllertest.ExpectSeen(t, controllertest.NewCluster(), trying(t, (*Controller).clusterChanged, controllertest.NewCluster(), func(h *harness) cache.SharedIndexInformer {
		return h.Informers.Clusters
	}))
}

// A pool that is being deleted needs its owners, so that Cluster API notices the end of the deletion.
func TestHandlersSeeWhatADeletionDependsOn(t *testing.T) {
	t.Parallel()
	pool := controllertest.Deleting(newSettled(t).pool())
	controllertest.ExpectSeen(t, pool, trying(t, (*Controller).poolChanged, pool, func(h *harness) cache.SharedIndexInformer {
		return h.Informers.Nstance.NstanceMachinePools().Informer()
	}), "Status")
}

// trying returns a function that changes an object of a settled pool.
func trying[T controllertest.Object](t *testing.T, handler func(c *Controller, before, after T), before T,
	informer func(*harness) cache.SharedIndexInformer,
) func(changed T) (enqueued, did []string, err error) {
	t.Helper()
	return func(changed T) (enqueued, did []string, err error) {
		h := newSettled(t)
		h.Put(informer(h), changed)
		h.CAPI.Changed = nil
		enqueued = controllertest.Enqueued(t, &h.controller.queue, func() { handler(h.controller, before, changed) })
		writes, requeue, err := h.sync()
		did = slices.Concat(writes, h.CAPI.Changed)
		if requeue > 0 {
			did = append(did, "requeue after "+requeue.String())
		}
		return enqueued, did, err
	}
}
