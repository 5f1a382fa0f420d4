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
	"nstance.dev/operator/pkg/shard"
)

// leavingPool is a pool that is being deleted, with members on shard a and, unless
// there are none there, on b.
func leavingPool(on map[string][]string) observation {
	pool := deletingPool("a", "b")
	seen := observed(pool, 5, newShardGroup(pool, "a", 3), newShardGroup(pool, "b", 2))
	seen.pool.OwnerReferences = []metav1.OwnerReference{{UID: seen.machinePools[0].UID}}
	for _, id := range []string{"a", "b"} {
		for _, name := range on[id] {
			member, _ := member(name, id, nil)
			seen.members = append(seen.members, member)
		}
	}
	for i := range seen.shards {
		seen.shards[i].reported = listed("a1", "a2", "a3")
	}
	return seen
}

// drained lets go of the named members, as Cluster API does.
func drained(seen observation, names ...string) {
	for _, member := range seen.members {
		if slices.Contains(names, member.Name) {
			member.DeletionTimestamp = ptr.To(metav1.Now())
		}
	}
}

// While Machines are drained, each shard gets smaller by those that are done, and
// its group goes after the last.
func TestDeletionDrainsMachinesFirst(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*observation)
		size    int32
		first   []string
		removed bool
	}{
		"nobody is done yet":    {func(*observation) {}, 3, nil, false},
		"one is":                {func(seen *observation) { drained(*seen, "a2") }, 2, []string{"a2"}, false},
		"all are":               {func(seen *observation) { drained(*seen, "a1", "a2", "a3") }, 0, []string{"a1", "a2", "a3"}, false},
		"there are none":        {func(seen *observation) { seen.members = seen.members[3:] }, 3, nil, true},
		"one that was done has": {func(seen *observation) { drained(*seen, "a2"); seen.shards[0].group.Spec.RemoveFirst = []string{"a2"} }, 3, []string{"a2"}, false},
		"one more": {func(seen *observation) {
			drained(*seen, "a1", "a2")
			seen.shards[0].group.Spec.RemoveFirst, seen.shards[0].group.Spec.Size = []string{"a2"}, 2
		}, 1, []string{"a2", "a1"}, false},
		"one that has ended by itself": {func(seen *observation) {
			drained(*seen, "a2")
			seen.shards[0].reported.Instances[1].State = shard.InstanceTerminating
		}, 3, nil, false},
		"one that has ended by itself, on a shard that was not read": {func(seen *observation) {
			drained(*seen, "a2")
			meta.SetStatusCondition(&seen.members[1].Status.Conditions, metav1.Condition{Type: v1beta1.ConditionServerDeleted, Status: metav1.ConditionTrue, Reason: "Test"})
			seen.shards[0].synced, seen.shards[0].reported = false, nil
		}, 3, nil, false},
		"one on a shard that was not read": {func(seen *observation) {
			drained(*seen, "a2")
			seen.shards[0].synced, seen.shards[0].reported = false, nil
		}, 2, []string{"a2"}, false},
		"more than are to be": {func(seen *observation) { drained(*seen, "a1", "a2"); seen.shards[0].group.Spec.Size = 1 }, 0, []string{"a1"}, false},
		"of a shard that the pool no longer names": {func(seen *observation) {
			drained(*seen, "a2")
			seen.shards = seen.shards[1:]
		}, 2, []string{"a2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			seen := leavingPool(map[string][]string{"a": {"a1", "a2", "a3"}, "b": {"b1"}})
			group := seen.owned[0]
			test.change(&seen)
			d := plan(seen)
			if removed := slices.Contains(d.remove, group); removed != test.removed || d.release {
				t.Errorf("its shard group is removed: %t, want %t; the pool is released: %t", removed, test.removed, d.release)
			}
			got := shardGroupSpec{spec: group.Spec}
			if len(d.apply) > 0 {
				got = d.apply[0]
				if got.uid != string(group.UID) || len(d.apply) > 1 {
					t.Errorf("writes %+v", d.apply)
				}
			}
			if got.spec.Size != test.size || !slices.Equal(got.spec.RemoveFirst, test.first) {
				t.Errorf("got size %d without %q, want %d without %q", got.spec.Size, got.spec.RemoveFirst, test.size, test.first)
			}
			if slices.Contains(d.remove, seen.owned[1]) {
				t.Error("shard b has a Machine to drain, and its group is removed")
			}
		})
	}
}

// A pool that is being deleted waits for the last of its members.
func TestDeletionWaitsForMembers(t *testing.T) {
	seen := leavingPool(map[string][]string{"a": {"a1"}})
	if held := deletionHeldUp(seen); held == nil || held.message != "b: the group is being removed" {
		t.Errorf("beside the shard that has a Machine to drain it says %+v", held)
	}
	seen.owned = seen.owned[:1]
	if held := deletionHeldUp(seen); held != nil {
		t.Errorf("a shard with a Machine to drain says %+v", held)
	}
	seen.owned, seen.shards, seen.machinePools = nil, nil, nil
	if d := plan(seen); d.release || d.hold.message != "the pool is being deleted and waits for the Machines of its instances" {
		t.Errorf("released: %t while it has a member; it says %q", d.release, d.hold.message)
	}
	seen.members = nil
	if d := plan(seen); !d.release {
		t.Error("it is not released")
	}
}

// What a former pool of the same name has left is not the pool's.
func TestDeletionWaitsForNoMembersOfAFormerPool(t *testing.T) {
	former, _ := member("a1", "a", nil)
	former.OwnerReferences[0].UID = "uid-of-former"
	h := newHarness(t, shardSizes{"a": 4}, deletingPool("a"), former)
	h.expect(releasePool)
}
