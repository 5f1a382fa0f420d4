// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// poolInDeletion returns a pool that is being deleted, with these nstanceMachines by
// shard.
func poolInDeletion(on map[string][]string) observation {
	pool := deletingPool("a", "b")
	seen := observed(pool, 5, newShardGroup(pool, "a", 3), newShardGroup(pool, "b", 2))
	seen.pool.OwnerReferences = []metav1.OwnerReference{{UID: seen.machinePools[0].UID}}
	for _, id := range []string{"a", "b"} {
		for _, name := range on[id] {
			nstanceMachine, _ := newInstance(name, id, nil)
			seen.nstanceMachines = append(seen.nstanceMachines, nstanceMachine)
		}
	}
	for i := range seen.shards {
		seen.shards[i].reported = listed("a1", "a2", "a3")
	}
	return seen
}

// drained marks nstanceMachines as being deleted, as Cluster API does after a drain.
func drained(seen observation, names ...string) {
	for _, nstanceMachine := range seen.nstanceMachines {
		if slices.Contains(names, nstanceMachine.Name) {
			nstanceMachine.DeletionTimestamp = ptr.To(metav1.Now())
		}
	}
}

// Each drained Machine makes its shard smaller, and the shard group is deleted after
// the last.
func TestDeletionDrainsMachinesFirst(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*observation)
		size    int32
		first   []string
		removed bool
	}{
		"none is drained yet":          {func(*observation) {}, 3, nil, false},
		"one is drained":               {func(seen *observation) { drained(*seen, "a2") }, 2, []string{"a2"}, false},
		"all are drained":              {func(seen *observation) { drained(*seen, "a1", "a2", "a3") }, 0, []string{"a1", "a2", "a3"}, false},
		"there are none":               {func(seen *observation) { seen.nstanceMachines = seen.nstanceMachines[3:] }, 3, nil, true},
		"one that was selected before": {func(seen *observation) { drained(*seen, "a2"); seen.shards[0].group.Spec.RemoveFirst = []string{"a2"} }, 3, []string{"a2"}, false},
		"one more is drained": {func(seen *observation) {
			drained(*seen, "a1", "a2")
			seen.shards[0].group.Spec.RemoveFirst, seen.shards[0].group.Spec.Size = []string{"a2"}, 2
		}, 1, []string{"a2", "a1"}, false},
		"one that was terminated before": {func(seen *observation) {
			drained(*seen, "a2")
			seen.shards[0].reported.Instances[1].State = shard.InstanceTerminating
		}, 3, nil, false},
		"one that was terminated before, on a shard that is not synced": {func(seen *observation) {
			drained(*seen, "a2")
			meta.SetStatusCondition(&seen.nstanceMachines[1].Status.Conditions, metav1.Condition{Type: v1beta1.ConditionServerDeleted, Status: metav1.ConditionTrue, Reason: "Test"})
			seen.shards[0].synced, seen.shards[0].reported = false, nil
		}, 3, nil, false},
		"one on a shard that is not synced": {func(seen *observation) {
			drained(*seen, "a2")
			seen.shards[0].synced, seen.shards[0].reported = false, nil
		}, 2, []string{"a2"}, false},
		"more than the size": {func(seen *observation) { drained(*seen, "a1", "a2"); seen.shards[0].group.Spec.Size = 1 }, 0, []string{"a1"}, false},
		"one on a shard that the pool no longer names": {func(seen *observation) {
			drained(*seen, "a2")
			seen.shards = seen.shards[1:]
		}, 2, []string{"a2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			seen := poolInDeletion(map[string][]string{"a": {"a1", "a2", "a3"}, "b": {"b1"}})
			group := seen.shardGroups[0]
			test.change(&seen)
			d := planOf(seen)
			if removed := slices.Contains(d.deleteShardGroups, group); removed != test.removed || d.removeFinalizer {
				t.Errorf("its shard group is removed: %t, want %t; the finalizer is removed: %t", removed, test.removed, d.removeFinalizer)
			}
			got := wantedShardGroup{spec: group.Spec}
			if len(d.apply) > 0 {
				got = d.apply[0]
				if got.uid != string(group.UID) || len(d.apply) > 1 {
					t.Errorf("writes %+v", d.apply)
				}
			}
			if got.spec.Size != test.size || !slices.Equal(got.spec.RemoveFirst, test.first) {
				t.Errorf("got size %d and removes %q first, want %d and %q", got.spec.Size, got.spec.RemoveFirst, test.size, test.first)
			}
			if slices.Contains(d.deleteShardGroups, seen.shardGroups[1]) {
				t.Error("shard b has a Machine to drain, and its group is removed")
			}
		})
	}
}

// A pool that is being deleted waits for its last NstanceMachine.
func TestDeletionWaitsForNstanceMachines(t *testing.T) {
	seen := poolInDeletion(map[string][]string{"a": {"a1"}})
	if blocked := deletionBlocked(seen); blocked == nil || blocked.message != "b: the group is being removed" {
		t.Errorf("with a Machine to drain on the other shard it is blocked by %+v", blocked)
	}
	seen.shardGroups = seen.shardGroups[:1]
	if blocked := deletionBlocked(seen); blocked != nil {
		t.Errorf("with a Machine to drain it is blocked by %+v", blocked)
	}
	seen.shardGroups, seen.shards, seen.machinePools = nil, nil, nil
	if d := planOf(seen); d.removeFinalizer || d.blocked.message != "the pool is being deleted and waits for the Machines of its instances" {
		t.Errorf("finalizer removed: %t while it has an NstanceMachine; the message is %q", d.removeFinalizer, d.blocked.message)
	}
	seen.nstanceMachines = nil
	if d := planOf(seen); !d.removeFinalizer {
		t.Error("the finalizer is not removed")
	}
}

// NstanceMachines of a former pool with the same name do not count.
func TestDeletionIgnoresNstanceMachinesOfAFormerPool(t *testing.T) {
	former, _ := newInstance("a1", "a", nil)
	former.OwnerReferences[0].UID = "uid-of-former"
	h := newHarness(t, withSizes(map[string]int32{"a": 4}), deletingPool("a"), former)
	h.expect(removeFinalizerOfPool)
}
