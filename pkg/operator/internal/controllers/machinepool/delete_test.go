// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

const (
	deleteA               = "delete nstanceshardgroups workers--a"
	deleteB               = "delete nstanceshardgroups workers--b"
	removeFinalizerOfPool = "patch nstancemachinepools workers"
)

func deletingPool(shards ...v1beta1.Identifier) *v1beta1.NstanceMachinePool {
	pool := newPool(shards...)
	pool.DeletionTimestamp = ptr.To(metav1.Now())
	return pool
}

func TestSyncAddsTheFinalizerFirst(t *testing.T) {
	pool := newPool("a")
	pool.Finalizers = []string{"example.com/other"}
	h := newHarness(t, withSizes(map[string]int32{"a": 0}), pool)
	h.scale(2)
	rejected := errors.New("rejected")
	h.Fail(poolSpec, rejected)
	if writes, _, err := h.sync(); !errors.Is(err, rejected) || !slices.Equal(writes, []string{poolSpec}) {
		t.Errorf("wrote %q without the finalizer, error %v", writes, err)
	}
	h.Fail(poolSpec, nil)
	h.expect(poolSpec, groupA)
	if got := h.pool().Finalizers; !slices.Contains(got, v1beta1.FinalizerMachinePool) || !slices.Contains(got, "example.com/other") {
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
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1}), pool, ready(newShardGroup(pool, "a", 1), "i-1"), ready(newShardGroup(pool, "b", 1), "i-2"))
	h.scale(2)
	h.expect(poolStatus, deleteA, deleteB)
	// Not a MachinePool that was created again under the name.
	assert.Equal(t, []string{`DELETE machinepools/workers {"kind":"DeleteOptions","apiVersion":"cluster.x-k8s.io/v1beta2",` +
		`"preconditions":{"uid":"uid-machinepool-workers"}}`}, h.CAPI.Changed)
	h.Show()
	// The MachinePool is being deleted, and waits for the pool.
	inDeletion := machinePool("workers", ptr.To[int32](2))
	inDeletion.DeletionTimestamp = ptr.To(metav1.Now())
	require.NoError(t, h.Informers.MachinePools.GetIndexer().Update(inDeletion))
	h.CAPI.Changed = nil
	h.expect()
	h.report("b", func(g *v1beta1.NstanceShardGroup) {
		condition(g, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonDeleting, "the shard has not confirmed the deletion of the group: connection rejected")
	})
	h.expect(poolStatus)
	got := meta.FindStatusCondition(h.pool().Status.Conditions, v1beta1.ConditionReady)
	if want := "b: the shard has not confirmed the deletion of the group: connection rejected"; got.Reason != v1beta1.ReasonDeleting || got.Message != want {
		t.Errorf("Ready says %s: %q, want %q", got.Reason, got.Message, want)
	}

	h.report("b", func(g *v1beta1.NstanceShardGroup) {
		condition(g, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonShardAhead, "the shard has size 9")
	})
	h.expect(poolStatus)
	got = meta.FindStatusCondition(h.pool().Status.Conditions, v1beta1.ConditionReady)
	if want := "b: the shard has size 9"; got.Reason != v1beta1.ReasonShardAhead || got.Message != want {
		t.Errorf("Ready says %s: %q, want %q", got.Reason, got.Message, want)
	}

	// Each shard confirms; the ids are removed with their group and not before.
	h.report("a", func(g *v1beta1.NstanceShardGroup) { g.Finalizers = nil })
	h.deleteShardGroup("a")
	h.expect(poolSpec, poolStatus)
	if got := h.pool().Spec.ProviderIDList; !slices.Equal(got, []string{"i-2"}) {
		t.Errorf("the ids are %q while shard b has its group", got)
	}
	h.deleteShardGroup("b")
	h.expect(removeFinalizerOfPool)
	if _, err := h.controller.pools.Get(t.Context(), "workers", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pool is still there: %v", err)
	}
	if len(h.CAPI.Changed) > 0 {
		t.Errorf("did %q to a MachinePool that is being deleted", h.CAPI.Changed)
	}
}

func TestDeletionOfAPoolWithoutGroupsIsOneWrite(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 4}), deletingPool("a"))
	h.expect(removeFinalizerOfPool)
}

// Cluster API never makes a MachinePool that is being deleted an owner of its pool, and
// then does not notice the deletion of the pool.
func TestDeletionMakesTheMachinePoolAnOwner(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 4}), deletingPool("a"))
	h.scale(2)
	h.expect(poolSpec)
	owners := h.pool().OwnerReferences
	if len(owners) != 1 || owners[0].UID != "uid-machinepool-workers" || owners[0].Name != "workers" ||
		owners[0].APIVersion != "cluster.x-k8s.io/v1beta2" || owners[0].Kind != "MachinePool" {
		t.Errorf("the owners are %+v", owners)
	}
	h.Show()
	h.expect(removeFinalizerOfPool)
}

func TestDeletionWaitsForAnUncachedMachinePool(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 4}), deletingPool("a"))
	made := newMachinePool(newPool("a"), "cluster--default", 4)
	_, err := h.controller.machinePools.Create(t.Context(), made, metav1.CreateOptions{})
	require.NoError(t, err)
	if writes, requeue, err := h.sync(); len(writes) > 0 || requeue != controller.StaleRetry || err != nil {
		t.Errorf("wrote %q, requeued after %v, error %v", writes, requeue, err)
	}
	h.CAPI.Created[0].SetName("of-another-pool")
	h.expect(removeFinalizerOfPool)
}

func TestDeletionWaitsWhileTheMachinePoolCannotBeDeleted(t *testing.T) {
	pool := deletingPool("a")
	pool.OwnerReferences = []metav1.OwnerReference{{UID: "uid-machinepool-workers"}}
	h := newHarness(t, withSizes(map[string]int32{"a": 4}), pool)
	h.scale(2)
	h.CAPI.Refused = apierrors.NewForbidden(schema.GroupResource{Resource: "machinepools"}, "workers", errors.New("by a webhook"))
	if writes, _, err := h.sync(); slices.Contains(writes, removeFinalizerOfPool) || !apierrors.IsForbidden(err) {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	h.CAPI.Refused = nil
	h.Show()
	h.expect(removeFinalizerOfPool)
}

func TestDeletionOfAPausedPoolWaits(t *testing.T) {
	pool := deletingPool("a")
	pool.Annotations = map[string]string{"cluster.x-k8s.io/paused": ""}
	h := newHarness(t, withSizes(map[string]int32{"a": 1}), pool, ready(newShardGroup(pool, "a", 1), "i-1"))
	h.expect(poolStatus)
	h.Show()
	h.expect()
}
