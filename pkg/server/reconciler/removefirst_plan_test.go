// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"testing"

	"nstance.dev/operator/pkg/server/instance"
)

// first says which instances go first when there are too many.
func first(ids ...string) func(*state) {
	return func(s *state) {
		s.removeFirst = map[string]bool{}
		for _, id := range ids {
			s.removeFirst[id] = true
		}
	}
}

// replaced says that one of them is gone, and another one in its place.
func replaced(s *state) { s.replaced = true }

func TestPlanChosen(t *testing.T) {
	const pending, running, impaired, stopped, missing = instance.Pending, instance.Running, instance.Impaired, instance.Stopped, instance.Missing
	testPlans(t, []planCase{
		{name: "of too many the chosen go, whatever their age", state: group(2, made("a", 3, running), made("b", 2, running), made("c", 1, running)).with(first("b")), want: []string{"drain b for scale-down until +5m0s"}},
		{name: "all that are chosen", state: group(1, made("a", 3, running), made("b", 2, running), made("c", 1, running)).with(first("c", "b")), want: []string{"drain b for scale-down until +5m0s", "drain c for scale-down until +5m0s"}},
		{name: "and then the oldest", state: group(1, made("a", 3, running), made("b", 2, running), made("c", 1, running)).with(first("c")), want: []string{"drain c for scale-down until +5m0s", "drain a for scale-down until +5m0s"}},
		{name: "of more than are too many the worst, whatever is wrong", state: group(2, made("a", 3, running), made("b", 2, running, old), made("c", 1, running)).with(first("a", "b", "c")), want: []string{"drain b for scale-down until +5m0s"}},
		{name: "and of the same kind the oldest", state: group(2, made("a", 3, running), made("b", 2, running), made("c", 1, running)).with(first("b", "c")), want: []string{"drain b for scale-down until +5m0s"}},
		{name: "as long as there are not too many nothing happens to them", state: group(2, made("a", 3, running), made("b", 2, running)).with(first("a", "b"))},
		{name: "nor are they spared what happens to others", state: group(2, made("a", 3, missing), made("b", 2, running)).with(first("a")), want: []string{"create for unhealthy", "end a for unhealthy"}},
		{name: "those that are on-demand or unknown mean nothing", state: group(1, made("a", 3, running), made("b", 2, running), made("o", 4, running, onDemand)).with(first("o", "x")), want: []string{"drain a for scale-down until +5m0s"}},
		{name: "with no drain they go at once", state: group(1, made("a", 3, running), made("b", 2, running)).with(undrained, first("b")), want: []string{"end b for scale-down"}},
		{
			name:  "they go in front of every trouble",
			state: group(0, made("h", 2, running), made("g", 1, running), made("f", 1, pending), made("e", 20, running), made("d", 5, running, old), made("c", 5, impaired), made("b", 30, running), made("a", 5, stopped)).with(ages(20, 30, 0), first("g", "d")),
			want: []string{
				"drain d for scale-down until +5m0s", "drain g for scale-down until +5m0s", "end a for unhealthy", "drain b for expired until +5m0s", "drain c for unhealthy until +5m0s",
				"drain e for expired until +5m0s", "end f for scale-down", "drain h for scale-down until +5m0s",
			},
		},
		{name: "one that is impaired goes for good", state: group(1, made("a", 3, running), made("b", 2, impaired)).with(first("b")), want: []string{"drain b for scale-down until +5m0s"}},
		{name: "one that is overdue does", state: group(1, made("a", 30, running), made("b", 2, running)).with(ages(0, 30, 0), first("a")), want: []string{"drain a for scale-down until +5m0s"}, wake: 28},
		{name: "one on which nothing runs does, at once", state: group(1, made("a", 3, running), made("b", 2, missing)).with(first("b")), want: []string{"end b for scale-down"}},
		{name: "one that is pending does, at once", state: group(1, made("a", 3, running), made("b", 2, pending, ordered)).with(first("b")), want: []string{"end b for scale-down"}},
		{name: "one that was not ordered does, at once", state: group(1, made("a", 3, running), made("b", 2, pending)).with(first("b")), want: []string{"end b for scale-down"}},
		{name: "not before as many as are wanted are there", state: group(2, made("a", 3, running), made("b", 2, running), made("c", 1, pending)).with(first("a")), want: []string{"order c"}},
		{name: "and then it goes", state: group(2, made("a", 3, running), made("b", 2, running), made("c", 1, pending, ordered)).with(first("a")), want: []string{"drain a for scale-down until +5m0s"}},
		{name: "one that is gone takes its place among those that go", state: group(2, made("a", 3, running), made("b", 2, running), made("c", 1, missing)).with(first("a")), want: []string{"end c for unhealthy"}},
		{name: "nobody comes in the place of one that drains", state: group(1, made("a", 3, running, draining("scale-down", 1)), made("b", 2, running)).with(first("a")), wake: 1},
	})
}

func TestPlanChosenWhileOthersAreReplaced(t *testing.T) {
	const pending, running, impaired, missing, terminating = instance.Pending, instance.Running, instance.Impaired, instance.Missing, instance.Terminating
	testPlans(t, []planCase{
		{
			name:  "it waits for nothing: whoever chose it knows what it costs",
			state: group(1, made("x", 9, impaired, draining("unhealthy", 4)), made("a", 2, running), made("b", 1, pending, ordered)).with(first("a")),
			want:  []string{"drain a for scale-down until +5m0s"}, wake: 4,
		},
		{
			name:  "while another drains that has been replaced",
			state: group(2, made("x", 9, running, draining("config-drift", 4)), made("a", 3, running), made("b", 2, running), made("c", 1, running)).with(first("a")),
			want:  []string{"drain a for scale-down until +5m0s"}, wake: 4,
		},
		{
			name:  "while the replacement of another is on its way",
			state: group(2, made("a", 3, running), made("b", 2, running), made("x", 9, running, old), made("c", 1, pending, ordered)).with(first("a")),
			want:  []string{"drain a for scale-down until +5m0s", "drain x for config-drift until +5m0s"},
		},
		{
			name:  "of one that drains for another reason the replacement goes, not the oldest",
			state: group(2, made("a", 9, running, draining("config-drift", 4)), made("b", 3, running), made("c", 2, running), made("d", 1, running)).with(first("a")),
			want:  []string{"drain d for scale-down until +5m0s"}, wake: 4,
		},
		{
			name:  "at once, while it is pending",
			state: group(2, made("a", 9, running, draining("config-drift", 4)), made("b", 3, running), made("c", 2, running), made("d", 1, pending, ordered)).with(first("a")),
			want:  []string{"end d for scale-down"}, wake: 4,
		},
		{
			name:  "an unhealthy one that is chosen is not to be replaced, and so not waited for",
			state: group(2, made("a", 9, impaired, draining("unhealthy", 4)), made("b", 3, running), made("c", 2, running), made("d", 1, pending, ordered)).with(first("a")),
			want:  []string{"end d for scale-down"}, wake: 4,
		},
		{
			name:  "of one that was to be deleted the replacement goes",
			state: group(2, made("a", 9, terminating, ending("requested")), made("b", 3, running), made("c", 2, running), made("d", 1, running)).with(first("a")),
			want:  []string{"drain d for scale-down until +5m0s"},
		},
		{
			name:  "so it does when it is forgotten in the same breath",
			state: group(2, made("a", 9, missing, ending("requested")), made("b", 3, running), made("c", 2, running), made("d", 1, running)).with(first("a")),
			want:  []string{"forget a", "drain d for scale-down until +5m0s"},
		},
		{
			name:  "and when it is gone",
			state: group(2, made("b", 3, running), made("c", 2, running), made("d", 1, running)).with(first("a"), replaced),
			want:  []string{"drain d for scale-down until +5m0s"},
		},
		{
			name:  "of one that was too many there is no replacement: the oldest goes",
			state: group(1, made("a", 9, running, draining("scale-down", 4)), made("b", 3, running), made("c", 2, running)).with(first("a")),
			want:  []string{"drain b for scale-down until +5m0s"}, wake: 4,
		},
		{
			name:  "nor of one that was and then was to be deleted",
			state: group(1, made("a", 9, terminating, draining("scale-down", 0), ending("requested")), made("b", 3, running), made("c", 2, running)).with(first("a")),
			want:  []string{"drain b for scale-down until +5m0s"},
		},
		{
			name:  "of an unwell one the replacement goes also before the other drains",
			state: group(2, made("a", 9, impaired), made("b", 3, running), made("c", 2, running), made("d", 1, pending, ordered)).with(first("a")),
			want:  []string{"drain a for scale-down until +5m0s", "end d for scale-down"},
		},
		{
			name:  "or when nobody knows any more that it drains",
			state: group(2, made("a", 9, running, old), made("b", 3, running), made("c", 2, running), made("d", 1, running)).with(first("a")),
			want:  []string{"drain a for scale-down until +5m0s", "drain d for scale-down until +5m0s"},
		},
		{
			name:  "one that has to go anyway goes before the replacement, or rotating would never end",
			state: group(2, made("b", 3, running, old), made("c", 2, running), made("d", 1, running)).with(first("a"), replaced),
			want:  []string{"drain b for config-drift until +5m0s"},
		},
	})
}
