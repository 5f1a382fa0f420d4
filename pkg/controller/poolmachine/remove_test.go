// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

func TestChosenInstancesGoByTheirMachines(t *testing.T) {
	pool := newPool("a", "b")
	onB := newMember(pool, newMachinePool(), instance{"i-3", "b"})
	h := newHarness(t, shards{"a": lists("i-1", "i-2"), "b": lists("i-3")}, pool,
		newShardGroup(pool, "a", "i-2", "i-2"), newShardGroup(pool, "b", "i-3"), stored("i-1"), stored("i-2"), onB)
	h.addMachines(newMachine("i-1"), newMachine("i-2"))
	h.expect("delete machines i-2")
	// Cluster API drains it.
	h.expect()
	// Cluster API has made the Machine that was missing.
	h.addMachines(newMachine("i-3"))
	h.expect("delete machines i-3")
	h.expect()
}

// A Machine of the same name that is somebody else's is left alone.
func TestOnlyMachinesOfThePoolGo(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, shards{"a": lists()}, pool, newShardGroup(pool, "a", "i-1", "i-2", "i-3"))
	otherKind, otherPool, single := newMachine("i-1"), newMachine("i-2"), newMachine("i-3")
	otherKind.Spec.InfrastructureRef.Kind = "OtherMachine"
	otherPool.Labels["cluster.x-k8s.io/pool-name"] = "others"
	delete(single.Labels, "cluster.x-k8s.io/pool-name")
	h.addMachines(otherKind, otherPool, single)
	h.expect()
	h.clock.SetTime(start.Add(orphanGrace))
	h.expect()
}

func TestAPoolThatGoesTakesItsMachinesAlong(t *testing.T) {
	pool := deleted(newPool("a"))
	h := newHarness(t, shards{"a": lists("i-1", "i-2", "i-3")}, pool, newShardGroup(pool, "a"), stored("i-1"), stored("i-2"))
	h.addMachines(newMachine("i-1"))
	h.expect("delete machines i-1")
	// Cluster API may still make the Machine of i-2, and has it in hand.
	h.expect()
	h.put(h.machinePoolCache, deleted(newMachinePool()))
	h.addMachines(newMachine("i-2"))
	withoutMachine := newMachine("i-2")
	delete(h.machines, withoutMachine.Name)
	h.expect()
	h.machines[withoutMachine.Name] = withoutMachine
	h.expect("delete machines i-2")
}

func TestAMemberThatGetsNoMachineGoesItself(t *testing.T) {
	for name, machinePoolGoes := range map[string]func(*harness){
		"the MachinePool goes":    func(h *harness) { h.put(h.machinePoolCache, deleted(newMachinePool())) },
		"the MachinePool is gone": func(h *harness) { h.noError(h.machinePoolCache.GetIndexer().Replace(nil, "1")) },
	} {
		t.Run(name, func(t *testing.T) {
			pool := deleted(newPool("a"))
			h := newHarness(t, shards{"a": lists("i-1")}, pool, newShardGroup(pool, "a"), stored("i-1"), stored("i-2"))
			machinePoolGoes(h)
			h.addMachines(newMachine("i-2"))
			h.expect("delete machines i-2", "delete nstancemachines i-1")
			if h.member("i-1").DeletionTimestamp.IsZero() {
				t.Error("it was not deleted")
			}
			h.expect()
		})
	}
}

// The instance came back under the same name in between: nothing that is not known
// is deleted.
func TestDeletionsAreOfWhatWasSeen(t *testing.T) {
	pool := deleted(newPool("a"))
	h := newHarness(t, shards{}, pool, stored("i-1"))
	h.noError(h.machinePoolCache.GetIndexer().Replace(nil, "1"))
	newer := stored("i-1")
	newer.UID = "uid-newer"
	h.update("nstancemachines", newer)
	if _, _, err := h.sync(); !apierrors.IsConflict(err) {
		t.Errorf("got error %v", err)
	}
	if member := h.member("i-1"); !member.DeletionTimestamp.IsZero() {
		t.Error("it was deleted")
	}
}

func TestAMachineWithoutItsNstanceMachineGoesAfterAWhile(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, shards{"a": lists()}, pool, newShardGroup(pool, "a"))
	h.addMachines(newMachine("i-1"))
	h.expect()
	h.clock.SetTime(start.Add(orphanGrace - 1))
	h.expect()
	h.clock.SetTime(start.Add(orphanGrace))
	h.expect("delete machines i-1")
	h.expect()
}

// The cache of NstanceMachines is behind that of Machines.
func TestAMachineWhoseNstanceMachineIsOnTheAPIServerStays(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, shards{"a": lists()}, pool, newShardGroup(pool, "a"))
	h.addMachines(newMachine("i-1"))
	h.expect()
	h.noError(h.Tracker().Add(stored("i-1")))
	h.clock.SetTime(start.Add(orphanGrace))
	writes, requeue, err := h.sync()
	if err != nil || len(writes) > 0 || requeue != orphanGrace {
		t.Errorf("wrote %q and waits %s, error %v", writes, requeue, err)
	}
}

// A Machine that was made by hand is of no concern.
func TestAMachineOfAStrangerStays(t *testing.T) {
	h := newHarness(t, shards{}, newPool("a"), stranger())
	h.addMachines(newMachine("i-1"))
	h.show()
	for range 2 {
		if writes, requeue, err := h.sync(); err != nil || len(writes) > 0 || requeue != 0 {
			t.Errorf("wrote %q and waits %s, error %v", writes, requeue, err)
		}
		h.clock.SetTime(start.Add(orphanGrace))
	}
}

// What the API server cannot answer is not gone.
func TestErrorsOfLooksDeleteNothing(t *testing.T) {
	t.Run("for an NstanceMachine", func(t *testing.T) {
		h := newHarness(t, shards{}, newPool("a"))
		h.addMachines(newMachine("i-1"))
		h.expect()
		h.clock.SetTime(start.Add(orphanGrace))
		h.Fail("get nstancemachines i-1", errors.New("out of order"))
		writes, _, err := h.sync()
		if err == nil || !strings.HasPrefix(err.Error(), "look for the NstanceMachine of Machine default/i-1: ") || len(writes) > 0 {
			t.Errorf("wrote %q, error %v", writes, err)
		}
	})
	t.Run("for a Machine", func(t *testing.T) {
		h := newHarness(t, shards{}, deleted(newPool("a")), stored("i-1"))
		h.put(h.machinePoolCache, deleted(newMachinePool()))
		h.unreadable = true
		writes, _, err := h.sync()
		if err == nil || !strings.HasPrefix(err.Error(), "look for the Machine of NstanceMachine default/i-1: ") || len(writes) > 0 {
			t.Errorf("wrote %q, error %v", writes, err)
		}
	})
}

func TestWhatCannotBeDeletedIsTriedAgain(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, shards{"a": lists("i-1")}, pool, newShardGroup(pool, "a", "i-1"), stored("i-1"))
	h.addMachines(newMachine("i-1"))
	h.show()
	h.capi.Refused = apierrors.NewTooManyRequests("not now", 0)
	if writes, _, err := h.sync(); err == nil || !strings.HasPrefix(err.Error(), "delete Machine default/i-1: ") || len(writes) == 0 {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	h.capi.Refused = nil
	h.expect("delete machines i-1")
}

// An instance whose Machine has gone while its NstanceMachine waits for the shard:
// neither is made or deleted again.
func TestTheEndOfAnInstanceIsQuiet(t *testing.T) {
	pool := newPool("a")
	groups := shards{"a": lists("i-1")}
	h := newHarness(t, groups, pool, newShardGroup(pool, "a"), stored("i-1"))
	h.addMachines(deleted(newMachine("i-1")))
	h.expect()
	h.update("nstancemachines", deleted(stored("i-1")))
	h.expect()
	groups["a"] = as("i-1", shard.InstanceTerminating)
	h.expect()
	h.noError(h.Tracker().Delete(v1beta1.SchemeGroupVersion.WithResource("nstancemachines"), namespace, "i-1"))
	h.expect()
	delete(h.machines, "i-1")
	h.expect()
	groups["a"] = lists()
	h.clock.SetTime(start.Add(orphanGrace))
	h.expect()
}
