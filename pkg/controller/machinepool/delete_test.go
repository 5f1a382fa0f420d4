// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"errors"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

const (
	deleteA     = "delete nstanceshardgroups workers--a"
	deleteB     = "delete nstanceshardgroups workers--b"
	releasePool = "patch nstancemachinepools workers"
)

func deletingPool(shards ...v1beta1.Identifier) *v1beta1.NstanceMachinePool {
	pool := newPool(shards...)
	pool.DeletionTimestamp = ptr.To(metav1.Now())
	return pool
}

func TestSyncPutsTheFinalizerOnBeforeAnythingElse(t *testing.T) {
	pool := newPool("a")
	pool.Finalizers = []string{"somebody/else"}
	h := newHarness(t, shardSizes{"a": 0}, pool)
	h.scale(2)
	refused := errors.New("refused")
	h.Fail(poolSpec, refused)
	if writes, _, err := h.sync(); !errors.Is(err, refused) || !slices.Equal(writes, []string{poolSpec}) {
		t.Errorf("wrote %q without the finalizer, error %v", writes, err)
	}
	h.Fail(poolSpec, nil)
	h.expect(poolSpec, groupA)
	if got := h.pool().Finalizers; !slices.Contains(got, v1beta1.FinalizerMachinePool) || !slices.Contains(got, "somebody/else") {
		t.Errorf("the finalizers are %q", got)
	}
	// Writing the provider ids keeps it: both are of one field manager.
	h.report("a", func(g *v1beta1.NstanceShardGroup) { ready(g, "i-1", "i-2") })
	h.expect(poolSpec, poolStatus)
	if got := h.pool(); !slices.Contains(got.Finalizers, v1beta1.FinalizerMachinePool) || len(got.Spec.ProviderIDList) != 2 {
		t.Errorf("the finalizers are %q, the ids %q", got.Finalizers, got.Spec.ProviderIDList)
	}
}

func TestDeletionOfAPoolWaitsForItsShardGroups(t *testing.T) {
	pool := deletingPool("a", "b")
	pool.Spec.ProviderIDList = []string{"i-1", "i-2"}
	pool.OwnerReferences = []metav1.OwnerReference{{UID: "uid-machinepool-workers"}}
	h := newHarness(t, shardSizes{"a": 1, "b": 1}, pool, ready(newShardGroup(pool, "a", 1), "i-1"), ready(newShardGroup(pool, "b", 1), "i-2"))
	h.scale(2)
	h.expect(poolStatus, deleteA, deleteB)
	if want := []string{"DELETE machinepools/workers"}; len(h.capi.Changed) != 1 || !strings.HasPrefix(h.capi.Changed[0], want[0]) {
		t.Errorf("did %q, want %q", h.capi.Changed, want)
	}
	h.show()
	// The MachinePool goes, and waits for the pool.
	gone := machinePool("workers", ptr.To[int32](2))
	gone.DeletionTimestamp = ptr.To(metav1.Now())
	if err := h.machinePools.GetIndexer().Update(gone); err != nil {
		t.Fatal(err)
	}
	h.capi.Changed = nil
	h.expect()
	h.report("b", func(g *v1beta1.NstanceShardGroup) {
		condition(g, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonDeleting, "the shard has not confirmed that the group is gone: connection refused")
	})
	h.expect(poolStatus)
	got := meta.FindStatusCondition(h.pool().Status.Conditions, v1beta1.ConditionReady)
	if want := "b: the shard has not confirmed that the group is gone: connection refused"; got.Reason != v1beta1.ReasonDeleting || got.Message != want {
		t.Errorf("Ready says %s: %q, want %q", got.Reason, got.Message, want)
	}

	// Each shard confirms; the ids go with their group and not before.
	h.report("a", func(g *v1beta1.NstanceShardGroup) { g.Finalizers = nil })
	h.forget("a")
	h.expect(poolSpec, poolStatus)
	if got := h.pool().Spec.ProviderIDList; !slices.Equal(got, []string{"i-2"}) {
		t.Errorf("the ids are %q while shard b has its group", got)
	}
	h.forget("b")
	h.expect(releasePool)
	if _, err := h.controller.pools.Get(t.Context(), "workers", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pool is still there: %v", err)
	}
	if len(h.capi.Changed) > 0 {
		t.Errorf("did %q to a MachinePool that goes already", h.capi.Changed)
	}
}

func TestDeletionOfAPoolWithoutGroupsIsOneWrite(t *testing.T) {
	h := newHarness(t, shardSizes{"a": 4}, deletingPool("a"))
	h.expect(releasePool)
}

// A MachinePool that is in deletion already when Cluster API first meets it is
// never made an owner of its pool by Cluster API, which then waits in vain for
// the news that the pool is gone.
func TestDeletionMakesTheMachinePoolAnOwner(t *testing.T) {
	h := newHarness(t, shardSizes{"a": 4}, deletingPool("a"))
	h.scale(2)
	h.expect(poolSpec)
	owners := h.pool().OwnerReferences
	if len(owners) != 1 || owners[0].UID != "uid-machinepool-workers" || owners[0].Name != "workers" ||
		owners[0].APIVersion != "cluster.x-k8s.io/v1beta2" || owners[0].Kind != "MachinePool" {
		t.Errorf("the owners are %+v", owners)
	}
	h.show()
	h.expect(releasePool)
}

func TestDeletionWaitsForAMachinePoolThatTheCacheDoesNotShow(t *testing.T) {
	h := newHarness(t, shardSizes{"a": 4}, deletingPool("a"))
	made := newMachinePool(newPool("a"), "cluster--default", 4)
	if _, err := h.controller.machinePools.Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if writes, requeue, err := h.sync(); len(writes) > 0 || requeue != staleRetry || err != nil {
		t.Errorf("wrote %q, comes back in %v, error %v", writes, requeue, err)
	}
	h.capi.Created[0].SetName("of-another-pool")
	h.expect(releasePool)
}

func TestDeletionWaitsWhileTheMachinePoolCannotBeDeleted(t *testing.T) {
	pool := deletingPool("a")
	pool.OwnerReferences = []metav1.OwnerReference{{UID: "uid-machinepool-workers"}}
	h := newHarness(t, shardSizes{"a": 4}, pool)
	h.scale(2)
	h.capi.Refused = apierrors.NewForbidden(schema.GroupResource{Resource: "machinepools"}, "workers", errors.New("by a webhook"))
	if writes, _, err := h.sync(); slices.Contains(writes, releasePool) || !apierrors.IsForbidden(err) {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	h.capi.Refused = nil
	h.show()
	h.expect(releasePool)
}

func TestDeletionOfAPausedPoolWaits(t *testing.T) {
	pool := deletingPool("a")
	pool.Annotations = map[string]string{"cluster.x-k8s.io/paused": ""}
	h := newHarness(t, shardSizes{"a": 1}, pool, ready(newShardGroup(pool, "a", 1), "i-1"))
	h.expect(poolStatus)
	h.show()
	h.expect()
}
