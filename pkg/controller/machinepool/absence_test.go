// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"
	"testing"

	"nstance.dev/operator/pkg/distribute"
	"nstance.dev/operator/pkg/shard"
)

func TestAbsence(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*shardState)
		want   absence
	}{
		"nothing":                     {func(*shardState) {}, absence{}},
		"one that is pending":         {func(s *shardState) { s.reported.Instances[2].State = shard.InstancePending }, absence{0, []string{"a3"}}},
		"one that nobody has told of": {func(s *shardState) { s.group.Spec.Size = 4 }, absence{untold: 1}},
		"both": {func(s *shardState) {
			s.group.Spec.Size, s.reported.Instances[2].State = 5, shard.InstancePending
		}, absence{2, []string{"a3"}}},
		"the group":                       {func(s *shardState) { s.reported = nil }, absence{untold: 3}},
		"a shard that was not read":       {func(s *shardState) { s.synced, s.reported = false, nil }, absence{}},
		"a server that lists none":        {func(s *shardState) { s.reported = &shard.Group{} }, absence{}},
		"a shard group that is to be":     {func(s *shardState) { s.group = nil }, absence{}},
		"one that is to end is not there": {func(s *shardState) { s.reported.Instances[0].State = shard.InstanceTerminating }, absence{}},
		"one that comes in the place of another": {func(s *shardState) {
			s.group.Spec.Size, s.reported.Size, s.reported.Instances[2].State = 2, 2, shard.InstancePending
		}, absence{}},
		"of two, of which one comes in the place of another, the youngest": {func(s *shardState) {
			s.group.Spec.Size, s.reported.Size = 2, 2
			s.reported.Instances[1].State, s.reported.Instances[2].State = shard.InstancePending, shard.InstancePending
		}, absence{0, []string{"a3"}}},
		"one that was chosen before is not missed": {func(s *shardState) {
			s.group.Spec.Size, s.group.Spec.RemoveFirst = 2, []string{"a1"}
		}, absence{}},
		"a victim goes anyway": {func(s *shardState) {
			s.reported.Instances[0].State, s.reported.Instances[2].State = shard.InstancePending, shard.InstancePending
		}, absence{0, []string{"a3"}}},
		"a size on its way down": {func(s *shardState) { s.reported.Size = 5 }, absence{}},
	} {
		t.Run(name, func(t *testing.T) {
			group := newShardGroup(newPool("b", "a"), "a", 3)
			state := shardState{id: "a", synced: true, group: group, reported: listed("a1", "a2", "a3")}
			state.reported.Size = 3
			test.change(&state)
			got := absences([]shardState{{}, state}, []distribute.Victim{{Shard: 1, ID: "a1"}, {Shard: 0, ID: "a3"}})[1]
			if got.untold != test.want.untold || !slices.Equal(got.pending, test.want.pending) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

// What a shard does not know needs no name, and of what it makes the youngest goes
// first.
func TestAbsentOnesToName(t *testing.T) {
	absent := absence{2, []string{"a1", "a2"}}
	for fewer, want := range [][]string{nil, nil, nil, {"a2"}, {"a1", "a2"}, {"a1", "a2"}} {
		if got := absent.first(int32(fewer)); !slices.Equal(got, want) {
			t.Errorf("for %d fewer got %v, want %v", fewer, got, want)
		}
	}
}

// The autoscaler takes back what it asked for and did not get, and chooses nobody
// for it. That must not cost an instance its place that is there.
func TestWhatHasNotComeIsTakenBack(t *testing.T) {
	for name, test := range map[string]struct {
		reported *shard.Group
		first    []string
	}{
		"its order waits": {&shard.Group{Key: "workers", Size: 1, ListsInstances: true,
			Instances: []shard.Instance{{ID: "b1", State: shard.InstancePending}}}, []string{"b1"}},
		"its shard has not heard of it": {&shard.Group{Key: "workers", ListsInstances: true}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1"}, "c": {"c1"}}, nil)
			h.controller.groups.(shardGroups)["b"] = test.reported
			h.live(3)
			if _, _, err := h.sync(); err != nil {
				t.Fatal(err)
			}
			if got := h.shardGroup("a").Spec; got.Size != 2 {
				t.Errorf("shard a became %+v", got)
			}
			if got := h.shardGroup("b").Spec; got.Size != 0 || !slices.Equal(got.RemoveFirst, test.first) {
				t.Errorf("shard b became %+v", got)
			}
		})
	}
}
