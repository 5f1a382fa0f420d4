// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// at returns an instance made so many seconds after the first.
func at(second int, id string, state instance.State) instance.Instance {
	return instance.Instance{ID: id, State: state, CreatedAt: time.Unix(int64(second), 0)}
}

func TestPlan(t *testing.T) {
	const pending, running, terminating = instance.Pending, instance.Running, instance.Terminating
	tests := []struct {
		name      string
		size      int32
		instances []instance.Instance
		want      actions
	}{
		{"nothing wanted, nothing there", 0, nil, actions{}},
		{"a new group is made whole", 3, nil, actions{create: 3}},
		{"a group of its size is left alone", 2, []instance.Instance{at(1, "a", running), at(2, "b", running)}, actions{}},
		{"what is missing is made", 3, []instance.Instance{at(1, "a", running)}, actions{create: 2}},
		{"pending instances count", 3, []instance.Instance{at(1, "a", pending), at(2, "b", running)}, actions{create: 1}},
		{"terminating instances do not count", 2, []instance.Instance{at(1, "a", terminating), at(2, "b", running)}, actions{create: 1}},
		{"terminating instances are not ended again", 0, []instance.Instance{at(1, "a", terminating)}, actions{}},
		{"the oldest go first, whatever their order", 1, []instance.Instance{at(3, "a", running), at(1, "c", running), at(2, "b", running)}, actions{remove: []string{"c", "b"}}},
		{"of the same age the smaller id goes first", 1, []instance.Instance{at(1, "b", running), at(1, "c", running), at(1, "a", running)}, actions{remove: []string{"a", "b"}}},
		{"an old pending instance goes before a younger one that runs", 1, []instance.Instance{at(2, "b", running), at(1, "a", pending)}, actions{remove: []string{"a"}}},
		{"all go when none is wanted", 0, []instance.Instance{at(1, "a", running), at(2, "b", pending), at(3, "c", terminating)}, actions{remove: []string{"a", "b"}}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			before := slices.Clone(tc.instances)
			got := plan(tc.size, tc.instances)
			if got.create != tc.want.create || !slices.Equal(got.remove, tc.want.remove) {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			if !slices.Equal(before, tc.instances) {
				t.Errorf("plan changed its input to %v", tc.instances)
			}
		})
	}
}

// TestPlanReachesTheSize applies plans to groups of every kind: afterwards the
// size is right, and no instance has gone that is younger than one that stays.
func TestPlanReachesTheSize(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 0))
		size := int32(random.IntN(8))
		instances := make([]instance.Instance, random.IntN(12))
		for i := range instances {
			// Few ages, so that many are equal.
			instances[i] = at(random.IntN(4), string(rune('a'+i)), instance.State(random.IntN(3)))
		}
		random.Shuffle(len(instances), func(i, j int) { instances[i], instances[j] = instances[j], instances[i] })

		planned := plan(size, instances)
		if planned.create > 0 && len(planned.remove) > 0 {
			t.Fatalf("seed %d: makes and ends instances: %+v", seed, planned)
		}
		left := planned.create
		for _, stays := range instances {
			if stays.State == instance.Terminating || slices.Contains(planned.remove, stays.ID) {
				continue
			}
			left++
			for _, goes := range instances {
				if slices.Contains(planned.remove, goes.ID) && goes.CreatedAt.After(stays.CreatedAt) {
					t.Fatalf("seed %d: %v goes before %v", seed, goes, stays)
				}
			}
		}
		if left != int(size) {
			t.Fatalf("seed %d: leaves %d of %d: %+v for %v", seed, left, size, planned, instances)
		}
	}
}
