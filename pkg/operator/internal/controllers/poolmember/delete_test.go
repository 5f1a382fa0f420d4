// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

func TestMachinesOfSelectedInstancesAreDeleted(t *testing.T) {
	pool := newPool("a", "b")
	onB := newNstanceMachine(pool, newMachinePool(), instance{"i-3", "b"})
	h := newHarness(t, byShard{"a": running("i-1", "i-2"), "b": running("i-3")}, pool,
		newShardGroup(pool, "a", "i-2", "i-2"), newShardGroup(pool, "b", "i-3"), stored("i-1"), stored("i-2"), onB)
	h.addMachines(newMachine("i-1"), newMachine("i-2"))
	h.expect("delete machines i-2")
	h.ExpectEvents("Normal DeletingMachine its instance was selected for removal")
	// Cluster API drains the Machine.
	h.expect()
	h.ExpectEvents()
	// Cluster API has created the missing Machine.
	h.addMachines(newMachine("i-3"))
	h.expect("delete machines i-3")
	h.expect()
}

// A scale-up has revoked the selection, or the shard group was deleted, and the cache does not have
// it yet. The Machine of a running instance stays.
func TestMachinesStayIfTheirSelectionWasRevoked(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"revoked": func(h *harness) {
			controllertest.Change(h.API, "workers--a", func(group *v1beta1.NstanceShardGroup) { group.Spec.RemoveFirst = []string{"i-2"} })
		},
		"deleted": func(h *harness) { controllertest.Remove[*v1beta1.NstanceShardGroup](h.API, "workers--a") },
	} {
		t.Run(name, func(t *testing.T) {
			pool := newPool("a")
			h := newHarness(t, byShard{"a": running("i-1", "i-2")}, pool, newShardGroup(pool, "a", "i-1"), stored("i-1"), stored("i-2"))
			h.addMachines(newMachine("i-1"), newMachine("i-2"))
			h.show()
			change(h)
			writes, _, err := h.sync()
			require.NoError(t, err)
			assert.Empty(t, writes)
		})
	}
}

// A Machine with the same name outside the pool is not deleted.
func TestOnlyMachinesOfThePoolAreDeleted(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, byShard{"a": running()}, pool, newShardGroup(pool, "a", "i-1", "i-2", "i-3"))
	otherKind, otherPool, single := newMachine("i-1"), newMachine("i-2"), newMachine("i-3")
	otherKind.Spec.InfrastructureRef.Kind = "OtherMachine"
	otherPool.Labels["cluster.x-k8s.io/pool-name"] = "others"
	delete(single.Labels, "cluster.x-k8s.io/pool-name")
	h.addMachines(otherKind, otherPool, single)
	h.expect()
	h.FakeClock.SetTime(start.Add(orphanGrace))
	h.expect()
}

func TestDeletedPoolDeletesItsMachines(t *testing.T) {
	pool := controllertest.Deleting(newPool("a"))
	h := newHarness(t, byShard{"a": running("i-1", "i-2", "i-3")}, pool, newShardGroup(pool, "a"), stored("i-1"), stored("i-2"))
	h.addMachines(newMachine("i-1"))
	h.expect("delete machines i-1")
	// Cluster API may still create the Machine of i-2.
	h.expect()
	h.Put(h.Informers.MachinePools, controllertest.Deleting(newMachinePool()))
	h.addMachines(newMachine("i-2"))
	withoutMachine := newMachine("i-2")
	delete(h.machines, withoutMachine.Name)
	h.expect()
	h.machines[withoutMachine.Name] = withoutMachine
	h.expect("delete machines i-2")
}

func TestNstanceMachineWithoutMachineIsDeleted(t *testing.T) {
	for name, deleteMachinePool := range map[string]func(*harness){
		"the MachinePool is being deleted": func(h *harness) { h.Put(h.Informers.MachinePools, controllertest.Deleting(newMachinePool())) },
		"the MachinePool was deleted":      func(h *harness) { require.NoError(h.T, h.Informers.MachinePools.GetIndexer().Replace(nil, "1")) },
	} {
		t.Run(name, func(t *testing.T) {
			pool := controllertest.Deleting(newPool("a"))
			h := newHarness(t, byShard{"a": running("i-1")}, pool, newShardGroup(pool, "a"), stored("i-1"), stored("i-2"))
			deleteMachinePool(h)
			h.addMachines(newMachine("i-2"))
			h.expect("delete machines i-2", "delete nstancemachines i-1")
			if h.nstanceMachine("i-1").DeletionTimestamp.IsZero() {
				t.Error("it was not deleted")
			}
			h.expect()
		})
	}
}

// If another object has the same name meanwhile, only the known object is deleted.
func TestDeletionsHaveTheUID(t *testing.T) {
	pool := controllertest.Deleting(newPool("a"))
	h := newHarness(t, byShard{}, pool, stored("i-1"))
	require.NoError(h.T, h.Informers.MachinePools.GetIndexer().Replace(nil, "1"))
	newer := stored("i-1")
	newer.UID = "uid-newer"
	h.update("nstancemachines", newer)
	if _, _, err := h.sync(); !apierrors.IsConflict(err) {
		t.Errorf("got error %v", err)
	}
	if nstanceMachine := h.nstanceMachine("i-1"); !nstanceMachine.DeletionTimestamp.IsZero() {
		t.Error("it was deleted")
	}
}

func TestOrphanedMachineIsDeletedAfterTheGrace(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, byShard{"a": running()}, pool, newShardGroup(pool, "a"))
	h.addMachines(newMachine("i-1"))
	h.expect()
	h.FakeClock.SetTime(start.Add(orphanGrace - 1))
	h.expect()
	h.FakeClock.SetTime(start.Add(orphanGrace))
	h.expect("delete machines i-1")
	h.ExpectEvents("Normal DeletingMachine its NstanceMachine was deleted")
	h.expect()
}

// The cache of NstanceMachines is older than the cache of Machines.
func TestMachineWithAnUncachedNstanceMachineStays(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, byShard{"a": running()}, pool, newShardGroup(pool, "a"))
	h.addMachines(newMachine("i-1"))
	h.expect()
	require.NoError(h.T, h.Tracker().Add(stored("i-1")))
	h.FakeClock.SetTime(start.Add(orphanGrace))
	writes, requeue, err := h.sync()
	if err != nil || len(writes) > 0 || requeue != orphanGrace {
		t.Errorf("wrote %q and waits %s, error %v", writes, requeue, err)
	}
}

// A Machine that a user created is not deleted.
func TestMachineOfAForeignNstanceMachineStays(t *testing.T) {
	h := newHarness(t, byShard{}, newPool("a"), foreign())
	h.addMachines(newMachine("i-1"))
	h.show()
	for range 2 {
		if writes, requeue, err := h.sync(); err != nil || len(writes) > 0 || requeue != 0 {
			t.Errorf("wrote %q and waits %s, error %v", writes, requeue, err)
		}
		h.FakeClock.SetTime(start.Add(orphanGrace))
	}
}

// An object that cannot be read may exist.
func TestFailedReadsDeleteNothing(t *testing.T) {
	t.Run("for an NstanceMachine", func(t *testing.T) {
		h := newHarness(t, byShard{}, newPool("a"))
		h.addMachines(newMachine("i-1"))
		h.expect()
		h.FakeClock.SetTime(start.Add(orphanGrace))
		h.Fail("get nstancemachines i-1", errors.New("out of order"))
		writes, _, err := h.sync()
		if err == nil || !strings.HasPrefix(err.Error(), "read the NstanceMachine of Machine default/i-1: ") || len(writes) > 0 {
			t.Errorf("wrote %q, error %v", writes, err)
		}
	})
	t.Run("for a Machine", func(t *testing.T) {
		h := newHarness(t, byShard{}, controllertest.Deleting(newPool("a")), stored("i-1"))
		h.Put(h.Informers.MachinePools, controllertest.Deleting(newMachinePool()))
		h.unreadable = true
		writes, _, err := h.sync()
		if err == nil || !strings.HasPrefix(err.Error(), "read the Machine of NstanceMachine default/i-1: ") || len(writes) > 0 {
			t.Errorf("wrote %q, error %v", writes, err)
		}
	})
}

func TestFailedDeletionIsRetried(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, byShard{"a": running("i-1")}, pool, newShardGroup(pool, "a", "i-1"), stored("i-1"))
	h.addMachines(newMachine("i-1"))
	h.show()
	h.CAPI.Refused = apierrors.NewTooManyRequests("not now", 0)
	if writes, _, err := h.sync(); err == nil || !strings.HasPrefix(err.Error(), "delete Machine default/i-1: ") || len(writes) == 0 {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	h.ExpectEvents()
	h.CAPI.Refused = nil
	h.expect("delete machines i-1")
	h.ExpectEvents("Normal DeletingMachine its instance was selected for removal")
}

// The Machine of an instance was deleted while its NstanceMachine waits for the shard:
// neither is created or deleted again.
func TestTerminationOfAnInstanceWritesNothing(t *testing.T) {
	pool := newPool("a")
	groups := byShard{"a": running("i-1")}
	h := newHarness(t, groups, pool, newShardGroup(pool, "a"), stored("i-1"))
	h.addMachines(controllertest.Deleting(newMachine("i-1")))
	h.expect()
	h.update("nstancemachines", controllertest.Deleting(stored("i-1")))
	h.expect()
	h.setGroup("a", inState("i-1", shard.InstanceTerminating))
	h.expect()
	require.NoError(h.T, h.Tracker().Delete(v1beta1.SchemeGroupVersion.WithResource("nstancemachines"), controllertest.Namespace, "i-1"))
	h.expect()
	delete(h.machines, "i-1")
	h.expect()
	h.setGroup("a", running())
	h.FakeClock.SetTime(start.Add(orphanGrace))
	h.expect()
}

// A change of any Machine of the pool syncs the pool, and the cache may be stale.
func TestAMachineIsDeletedOnceWhileTheCacheIsStale(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, byShard{"a": running("i-1", "i-2")}, pool, newShardGroup(pool, "a", "i-2"), stored("i-1"), stored("i-2"))
	h.addMachines(newMachine("i-1"), newMachine("i-2"))
	h.show()
	deleted := 0
	for range 10 {
		writes, _, err := h.sync()
		require.NoError(t, err)
		deleted += len(writes)
	}
	if deleted != 1 {
		t.Errorf("%d deletions, want 1", deleted)
	}
	// The deletion is requested again after the time in which the cache should have shown it.
	h.FakeClock.SetTime(start.Add(time.Minute))
	if writes, _, err := h.sync(); err != nil || len(writes) != 1 {
		t.Errorf("wrote %q, error %v", writes, err)
	}
}

func TestARefusedDeletionIsRepeated(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, byShard{"a": running("i-1")}, pool, newShardGroup(pool, "a", "i-1"), stored("i-1"))
	h.addMachines(newMachine("i-1"))
	h.CAPI.Refused = apierrors.NewServiceUnavailable("later")
	h.show()
	for range 3 {
		if writes, _, err := h.sync(); err == nil || len(writes) != 1 {
			t.Errorf("wrote %q, error %v", writes, err)
		}
	}
}
