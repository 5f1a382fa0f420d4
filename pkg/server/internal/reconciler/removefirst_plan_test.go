// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"testing"

	"nstance.dev/operator/pkg/server/instance"
)

// removing sets the instances to delete first when there are too many.
func removing(ids ...string) func(*state) {
	return func(s *state) {
		s.removeFirst = map[string]bool{}
		for _, id := range ids {
			s.removeFirst[id] = true
		}
	}
}

// replaced marks one of them as deleted and replaced.
func replaced(s *state) { s.replaced = true }

func TestPlanRemoveFirst(t *testing.T) {
	const pending, running, impaired, stopped, missing = instance.Pending, instance.Running, instance.Impaired, instance.Stopped, instance.Missing
	testPlans(t, []planCase{
		{name: "candidates are deleted first, at any age", state: group(2, newInstance("a", 3, running), newInstance("b", 2, running), newInstance("c", 1, running)).with(removing("b")), want: []string{"drain b for scale-down until +5m0s"}},
		{name: "all candidates", state: group(1, newInstance("a", 3, running), newInstance("b", 2, running), newInstance("c", 1, running)).with(removing("c", "b")), want: []string{"drain b for scale-down until +5m0s", "drain c for scale-down until +5m0s"}},
		{name: "and then the oldest", state: group(1, newInstance("a", 3, running), newInstance("b", 2, running), newInstance("c", 1, running)).with(removing("c")), want: []string{"drain c for scale-down until +5m0s", "drain a for scale-down until +5m0s"}},
		{name: "of too many candidates those with the worst problem", state: group(2, newInstance("a", 3, running), newInstance("b", 2, running, old), newInstance("c", 1, running)).with(removing("a", "b", "c")), want: []string{"drain b for scale-down until +5m0s"}},
		{name: "and the oldest among equals", state: group(2, newInstance("a", 3, running), newInstance("b", 2, running), newInstance("c", 1, running)).with(removing("b", "c")), want: []string{"drain b for scale-down until +5m0s"}},
		{name: "without surplus instances no candidate is deleted", state: group(2, newInstance("a", 3, running), newInstance("b", 2, running)).with(removing("a", "b"))},
		{name: "candidates are replaced like others", state: group(2, newInstance("a", 3, missing), newInstance("b", 2, running)).with(removing("a")), want: []string{"create for unhealthy", "terminate a for unhealthy"}},
		{name: "on-demand and unknown ids have no effect", state: group(1, newInstance("a", 3, running), newInstance("b", 2, running), newInstance("o", 4, running, onDemand)).with(removing("o", "x")), want: []string{"drain a for scale-down until +5m0s"}},
		{name: "without a drain timeout they are terminated at once", state: group(1, newInstance("a", 3, running), newInstance("b", 2, running)).with(undrained, removing("b")), want: []string{"terminate b for scale-down"}},
		{
			name:  "candidates come before every problem",
			state: group(0, newInstance("h", 2, running), newInstance("g", 1, running), newInstance("f", 1, pending), newInstance("e", 20, running), newInstance("d", 5, running, old), newInstance("c", 5, impaired), newInstance("b", 30, running), newInstance("a", 5, stopped)).with(ages(20, 30, 0), removing("g", "d")),
			want: []string{
				"drain d for scale-down until +5m0s", "drain g for scale-down until +5m0s", "terminate a for unhealthy", "drain b for expired until +5m0s", "drain c for unhealthy until +5m0s",
				"drain e for expired until +5m0s", "terminate f for scale-down", "drain h for scale-down until +5m0s",
			},
		},
		{name: "an impaired candidate is not replaced", state: group(1, newInstance("a", 3, running), newInstance("b", 2, impaired)).with(removing("b")), want: []string{"drain b for scale-down until +5m0s"}},
		{name: "nor is an overdue one", state: group(1, newInstance("a", 30, running), newInstance("b", 2, running)).with(ages(0, 30, 0), removing("a")), want: []string{"drain a for scale-down until +5m0s"}, next: 28},
		{name: "nor one that is down, which is terminated at once", state: group(1, newInstance("a", 3, running), newInstance("b", 2, missing)).with(removing("b")), want: []string{"terminate b for scale-down"}},
		{name: "nor a pending one, which is terminated at once", state: group(1, newInstance("a", 3, running), newInstance("b", 2, pending, known)).with(removing("b")), want: []string{"terminate b for scale-down"}},
		{name: "nor an uncreated one, which is terminated at once", state: group(1, newInstance("a", 3, running), newInstance("b", 2, pending)).with(removing("b")), want: []string{"terminate b for scale-down"}},
		{name: "not before as many as desired exist", state: group(2, newInstance("a", 3, running), newInstance("b", 2, running), newInstance("c", 1, pending)).with(removing("a")), want: []string{"create recorded c"}},
		{name: "then it is deleted", state: group(2, newInstance("a", 3, running), newInstance("b", 2, running), newInstance("c", 1, pending, known)).with(removing("a")), want: []string{"drain a for scale-down until +5m0s"}},
		{name: "an instance that is down is deleted instead", state: group(2, newInstance("a", 3, running), newInstance("b", 2, running), newInstance("c", 1, missing)).with(removing("a")), want: []string{"terminate c for unhealthy"}},
		{name: "no other is deleted in place of a draining candidate", state: group(1, newInstance("a", 3, running, draining("scale-down", 1)), newInstance("b", 2, running)).with(removing("a")), next: 1},
	})
}

func TestPlanRemoveFirstDuringReplacements(t *testing.T) {
	const pending, running, impaired, missing, terminating = instance.Pending, instance.Running, instance.Impaired, instance.Missing, instance.Terminating
	testPlans(t, []planCase{
		{
			name:  "a candidate does not wait, because its removal was requested",
			state: group(1, newInstance("x", 9, impaired, draining("unhealthy", 4)), newInstance("a", 2, running), newInstance("b", 1, pending, known)).with(removing("a")),
			want:  []string{"drain a for scale-down until +5m0s"}, next: 4,
		},
		{
			name:  "while another one drains that has been replaced",
			state: group(2, newInstance("x", 9, running, draining("config-drift", 4)), newInstance("a", 3, running), newInstance("b", 2, running), newInstance("c", 1, running)).with(removing("a")),
			want:  []string{"drain a for scale-down until +5m0s"}, next: 4,
		},
		{
			name:  "while the replacement of another one is pending",
			state: group(2, newInstance("a", 3, running), newInstance("b", 2, running), newInstance("x", 9, running, old), newInstance("c", 1, pending, known)).with(removing("a")),
			want:  []string{"drain a for scale-down until +5m0s", "drain x for config-drift until +5m0s"},
		},
		{
			name:  "if a candidate already drains for another reason, its replacement is deleted, not the oldest",
			state: group(2, newInstance("a", 9, running, draining("config-drift", 4)), newInstance("b", 3, running), newInstance("c", 2, running), newInstance("d", 1, running)).with(removing("a")),
			want:  []string{"drain d for scale-down until +5m0s"}, next: 4,
		},
		{
			name:  "at once, while it is pending",
			state: group(2, newInstance("a", 9, running, draining("config-drift", 4)), newInstance("b", 3, running), newInstance("c", 2, running), newInstance("d", 1, pending, known)).with(removing("a")),
			want:  []string{"terminate d for scale-down"}, next: 4,
		},
		{
			name:  "an unhealthy candidate is not replaced, so others do not wait",
			state: group(2, newInstance("a", 9, impaired, draining("unhealthy", 4)), newInstance("b", 3, running), newInstance("c", 2, running), newInstance("d", 1, pending, known)).with(removing("a")),
			want:  []string{"terminate d for scale-down"}, next: 4,
		},
		{
			name:  "if the deletion of a candidate was requested, its replacement is deleted",
			state: group(2, newInstance("a", 9, terminating, deleting("requested")), newInstance("b", 3, running), newInstance("c", 2, running), newInstance("d", 1, running)).with(removing("a")),
			want:  []string{"drain d for scale-down until +5m0s"},
		},
		{
			name:  "also if the candidate's record is removed in the same plan",
			state: group(2, newInstance("a", 9, missing, deleting("requested")), newInstance("b", 3, running), newInstance("c", 2, running), newInstance("d", 1, running)).with(removing("a")),
			want:  []string{"remove a", "drain d for scale-down until +5m0s"},
		},
		{
			name:  "and if the candidate was deleted before",
			state: group(2, newInstance("b", 3, running), newInstance("c", 2, running), newInstance("d", 1, running)).with(removing("a"), replaced),
			want:  []string{"drain d for scale-down until +5m0s"},
		},
		{
			name:  "a surplus candidate has no replacement: the oldest is deleted",
			state: group(1, newInstance("a", 9, running, draining("scale-down", 4)), newInstance("b", 3, running), newInstance("c", 2, running)).with(removing("a")),
			want:  []string{"drain b for scale-down until +5m0s"}, next: 4,
		},
		{
			name:  "nor has a surplus candidate whose deletion was requested later",
			state: group(1, newInstance("a", 9, terminating, draining("scale-down", 0), deleting("requested")), newInstance("b", 3, running), newInstance("c", 2, running)).with(removing("a")),
			want:  []string{"drain b for scale-down until +5m0s"},
		},
		{
			name:  "the replacement of an unhealthy candidate is deleted even before the candidate drains",
			state: group(2, newInstance("a", 9, impaired), newInstance("b", 3, running), newInstance("c", 2, running), newInstance("d", 1, pending, known)).with(removing("a")),
			want:  []string{"drain a for scale-down until +5m0s", "terminate d for scale-down"},
		},
		{
			name:  "or if its drain was lost",
			state: group(2, newInstance("a", 9, running, old), newInstance("b", 3, running), newInstance("c", 2, running), newInstance("d", 1, running)).with(removing("a")),
			want:  []string{"drain a for scale-down until +5m0s", "drain d for scale-down until +5m0s"},
		},
		{
			name:  "a drifted instance is deleted before the replacement, or rotation would never finish",
			state: group(2, newInstance("b", 3, running, old), newInstance("c", 2, running), newInstance("d", 1, running)).with(removing("a"), replaced),
			want:  []string{"drain b for config-drift until +5m0s"},
		},
	})
}
