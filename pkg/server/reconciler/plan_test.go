// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// moment is when the plans of the tables are made.
var moment = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// made returns an instance of the present configuration that is so many minutes
// old. The provider knows it unless it is missing or pending.
func made(id string, minutes int, state instance.State, changes ...func(*instance.Instance)) instance.Instance {
	i := instance.Instance{
		Record: instance.Record{ID: id, InfraConfigHash: "new", CreatedAt: moment.Add(-time.Duration(minutes) * time.Minute)},
		State:  state,
		Known:  state != instance.Pending && state != instance.Missing,
	}
	for _, change := range changes {
		change(&i)
	}
	return i
}

func onDemand(i *instance.Instance) { i.OnDemand = true }
func ordered(i *instance.Instance)  { i.Known = true }
func old(i *instance.Instance)      { i.InfraConfigHash = "old" }
func unhashed(i *instance.Instance) { i.InfraConfigHash = "" }
func acked(i *instance.Instance)    { i.Drain.Acknowledged = true }

// draining is so many minutes before its time is up.
func draining(reason string, minutes int) func(*instance.Instance) {
	return func(i *instance.Instance) {
		i.Drain = &instance.Drain{Reason: reason, DeleteAt: moment.Add(time.Duration(minutes) * time.Minute)}
	}
}

func ending(reason string) func(*instance.Instance) {
	return func(i *instance.Instance) { i.DeleteReason = reason }
}

func group(size int, instances ...instance.Instance) state {
	return state{size: size, infraConfigHash: "new", drainTimeout: 5 * time.Minute, instances: instances}
}

func (s state) with(changes ...func(*state)) state {
	for _, change := range changes {
		change(&s)
	}
	return s
}

func undrained(s *state) { s.drainTimeout = 0 }
func deleted(s *state)   { s.deleted, s.infraConfigHash = true, "" }

// ages are in minutes.
func ages(eligible, forced, onDemand int) func(*state) {
	return func(s *state) {
		s.expiry = config.Expiry{
			EligibleAge: time.Duration(eligible) * time.Minute,
			ForcedAge:   time.Duration(forced) * time.Minute,
			OnDemandAge: time.Duration(onDemand) * time.Minute,
		}
	}
}

func fiveMinutes(s *state) { s.registrationTimeout = 5 * time.Minute }

// tried says how many minutes ago a was last ordered in vain.
func tried(minutes int) func(*state) {
	return func(s *state) {
		s.tried = map[string]time.Time{"a": moment.Add(-time.Duration(minutes) * time.Minute)}
	}
}

// String is what an action looks like in the tables.
func (a action) String() string {
	parts := []string{string(a.verb)}
	if a.id != "" {
		parts = append(parts, a.id)
	}
	if a.providerID != "" {
		parts = append(parts, "is", a.providerID)
	}
	if a.reason != "" {
		parts = append(parts, "for", a.reason)
	}
	if !a.deleteAt.IsZero() {
		parts = append(parts, "until", fmt.Sprintf("+%v", a.deleteAt.Sub(moment)))
	}
	return strings.Join(parts, " ")
}

type planCase struct {
	name  string
	state state
	want  []string
	// wake is in minutes from now, 0 for never.
	wake int
}

func testPlans(t *testing.T, tests []planCase) {
	t.Helper()
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			before := slices.Clone(tc.state.instances)
			actions, wake := plan(tc.state, moment)
			var got []string
			for _, a := range actions {
				got = append(got, a.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
			var wantWake time.Time
			if tc.wake > 0 {
				wantWake = moment.Add(time.Duration(tc.wake) * time.Minute)
			}
			if !wake.Equal(wantWake) {
				t.Errorf("wakes at %v, want %v", wake, wantWake)
			}
			if diff := cmp.Diff(before, tc.state.instances); diff != "" {
				t.Errorf("plan changed what it was made from:\n%s", diff)
			}
		})
	}
}

func TestPlanScaling(t *testing.T) {
	const pending, running, impaired, stopped, missing, terminating = instance.Pending, instance.Running, instance.Impaired, instance.Stopped, instance.Missing, instance.Terminating
	testPlans(t, []planCase{
		{name: "nothing wanted, nothing there", state: group(0)},
		{name: "a new group is made whole", state: group(2), want: []string{"create for scale-up", "create for scale-up"}},
		{name: "a group of its size is left alone", state: group(2, made("a", 2, running), made("b", 1, running))},
		{name: "pending instances count", state: group(2, made("a", 1, pending, ordered)), want: []string{"create for scale-up"}},
		{name: "what was decided on before is ordered before more is", state: group(2, made("a", 1, pending)), want: []string{"order a", "create for scale-up"}},
		{name: "on-demand instances do not count", state: group(1, made("a", 1, running, onDemand)), want: []string{"create for scale-up"}},
		{name: "what ends does not count", state: group(1, made("a", 1, terminating)), want: []string{"create for scale-up"}},
		{
			name:  "what drains has its place yet: one too many, not two",
			state: group(3, made("a", 3, running, draining("scale-down", 1)), made("b", 2, running, draining("scale-down", 2)), made("c", 1, running)),
			want:  []string{"create for scale-up"}, wake: 1,
		},
		{
			name:  "the oldest go first, whatever their order",
			state: group(1, made("a", 1, running), made("c", 3, running), made("b", 2, running)),
			want:  []string{"drain c for scale-down until +5m0s", "drain b for scale-down until +5m0s"},
		},
		{name: "of the same age the smaller id goes first", state: group(1, made("b", 1, running), made("a", 1, running)), want: []string{"drain a for scale-down until +5m0s"}},
		{name: "with no drain they go at once", state: group(0, made("a", 1, running)).with(undrained), want: []string{"end a for scale-down"}},
		{name: "pending ones go at once", state: group(0, made("a", 1, pending, ordered), made("b", 1, pending)), want: []string{"end b for scale-down", "end a for scale-down"}},
		{
			name:  "the worst go first: gone, overdue, impaired, drifted, eligible, not ordered, oldest",
			state: group(0, made("h", 2, running), made("g", 1, running), made("f", 1, pending), made("e", 20, running), made("d", 5, running, old), made("c", 5, impaired), made("b", 30, running), made("a", 5, stopped)).with(ages(20, 30, 0)),
			want: []string{
				"end a for unhealthy", "drain b for expired until +5m0s", "drain c for unhealthy until +5m0s", "drain d for config-drift until +5m0s",
				"drain e for expired until +5m0s", "end f for scale-down", "drain h for scale-down until +5m0s", "drain g for scale-down until +5m0s",
			},
		},
		{
			name:  "what was not ordered goes before what runs, so that a quota that is used up costs no instance",
			state: group(1, made("a", 2, running), made("b", 1, pending)), want: []string{"end b for scale-down"},
		},
		{
			name:  "one that is well waits until the unhealthy one is replaced by one that runs",
			state: group(1, made("x", 9, impaired, draining("unhealthy", 4)), made("a", 2, running), made("b", 1, pending, ordered)), wake: 4,
		},
		{
			name:  "and then it goes",
			state: group(1, made("x", 9, impaired, draining("unhealthy", 4)), made("a", 2, running), made("b", 1, running)),
			want:  []string{"drain a for scale-down until +5m0s"}, wake: 4,
		},
		{
			name:  "one that was not ordered does not wait",
			state: group(1, made("x", 9, impaired, draining("unhealthy", 4)), made("a", 2, running), made("b", 1, pending)),
			want:  []string{"end b for scale-down"}, wake: 4,
		},
		{
			name:  "one that is not well does not wait",
			state: group(1, made("x", 9, impaired, draining("unhealthy", 4)), made("a", 2, impaired), made("b", 1, pending, ordered)),
			want:  []string{"drain a for unhealthy until +5m0s"}, wake: 4,
		},
		{
			name:  "a deleted group is drained, and its on-demand instances outlive it",
			state: group(0, made("a", 2, running, old), made("b", 1, running, onDemand)).with(deleted),
			want:  []string{"drain a for scale-down until +5m0s"},
		},
		{name: "an instance that ended by itself leaves no gap twice", state: group(1, made("a", 2, missing), made("b", 1, running)), want: []string{"end a for unhealthy"}},
	})
}

func TestPlanCompletion(t *testing.T) {
	const pending, running, stopped, missing, terminating = instance.Pending, instance.Running, instance.Stopped, instance.Missing, instance.Terminating
	testPlans(t, []planCase{
		{name: "what was ended and is gone is forgotten", state: group(0, made("a", 1, missing, ending("expired"))), want: []string{"forget a"}},
		{name: "what was ended and never ordered is too", state: group(0, made("a", 1, pending, ending("expired"))), want: []string{"forget a"}},
		{name: "an order to end that was lost is repeated", state: group(0, made("a", 1, running, ending("requested"))), want: []string{"end again a for requested"}},
		{name: "one that is followed is not", state: group(0, made("a", 1, terminating, ending("requested")))},
		{name: "on-demand instances are alike", state: group(0, made("a", 1, missing, onDemand, ending("requested")), made("b", 1, running, onDemand, ending("requested"))), want: []string{"forget a", "end again b for requested"}},
		{name: "a drain takes its time", state: group(0, made("a", 1, running, draining("expired", 1))), wake: 1},
		{name: "a drain that is acknowledged is over", state: group(0, made("a", 1, running, draining("expired", 1), acked)), want: []string{"end a for expired"}, wake: 1},
		{name: "a drain whose time is up is over", state: group(0, made("a", 1, running, draining("expired", 0))), want: []string{"end a for expired"}},
		{name: "a drain of what runs no more is over", state: group(0, made("a", 1, stopped, draining("expired", 1))), want: []string{"end a for expired"}, wake: 1},
		{name: "a drain of an on-demand instance is alike", state: group(0, made("a", 1, running, onDemand, draining("expired", 0))), want: []string{"end a for expired"}},
		{name: "the end of a drain makes room", state: group(1, made("a", 1, running, draining("scale-down", 0)), made("b", 1, running, draining("scale-down", 1))), want: []string{"end a for scale-down", "create for scale-up"}, wake: 1},
		{name: "what the provider never knew is waited for", state: group(1, made("a", 4, pending)).with(fiveMinutes), want: []string{"order a"}, wake: 1},
		{name: "and then ordered once more, however old it is", state: group(1, made("a", 500, pending)).with(fiveMinutes), want: []string{"order a"}},
		{name: "an attempt before that does not count", state: group(1, made("a", 8, pending)).with(fiveMinutes, tried(4)), want: []string{"order a"}},
		{name: "and then given up and replaced", state: group(1, made("a", 8, pending)).with(fiveMinutes, tried(3)), want: []string{"end a for unregistered", "create for scale-up"}},
		{name: "on-demand ones are ordered once more too", state: group(0, made("a", 5, pending, onDemand)).with(fiveMinutes), want: []string{"order a"}},
		{name: "and not replaced", state: group(0, made("a", 5, pending, onDemand)).with(fiveMinutes, tried(0)), want: []string{"end a for unregistered"}},
		{name: "what the provider knows is not given up", state: group(1, made("a", 5, pending, ordered)).with(fiveMinutes, tried(0))},
		{name: "without a timeout nothing is", state: group(1, made("a", 5000, pending)).with(tried(0)), want: []string{"order a"}},
		{
			name: "the provider's id is kept, of one that leaves too",
			state: group(1, made("a", 2, running), made("b", 2, terminating, ending("expired")), made("c", 2, missing, ending("expired"))).with(func(s *state) {
				s.providerIDs = map[string]string{"a": "vm-1", "b": "vm-2", "c": "vm-3"}
			}),
			want: []string{"confirm a is vm-1", "confirm b is vm-2", "forget c"},
		},
	})
}

func TestPlanForcedExpiry(t *testing.T) {
	const pending, running, impaired = instance.Pending, instance.Running, instance.Impaired
	testPlans(t, []planCase{
		{name: "the replacement comes first", state: group(1, made("a", 30, running)).with(ages(0, 30, 0)), want: []string{"create for expired"}},
		{name: "not before its time", state: group(1, made("a", 29, running)).with(ages(0, 30, 0)), wake: 1},
		{name: "it must have been ordered", state: group(1, made("a", 30, running), made("b", 1, pending)).with(ages(0, 30, 0)), want: []string{"order b"}, wake: 29},
		{name: "then the old one drains", state: group(1, made("a", 30, running), made("b", 1, pending, ordered)).with(ages(0, 30, 0)), want: []string{"drain a for expired until +5m0s"}, wake: 29},
		{name: "or ends at once", state: group(1, made("a", 30, running), made("b", 1, pending, ordered)).with(ages(0, 30, 0), undrained), want: []string{"end a for expired"}, wake: 29},
		{
			name:  "all at a time, whatever else drains or is not well",
			state: group(4, made("x", 40, running, draining("config-drift", 3)), made("a", 30, running), made("b", 31, running), made("c", 1, impaired), made("d", 1, running)).with(ages(0, 30, 0)),
			want:  []string{"create for expired", "create for expired"}, wake: 3,
		},
		{
			name:  "those that are replaced go although others wait",
			state: group(2, made("a", 31, running), made("b", 30, running), made("c", 1, pending, ordered)).with(ages(0, 30, 0)),
			want:  []string{"drain a for expired until +5m0s", "create for expired"}, wake: 29,
		},
	})
}

func TestPlanUnhealthy(t *testing.T) {
	const pending, running, impaired, stopped, failed, missing = instance.Pending, instance.Running, instance.Impaired, instance.Stopped, instance.Failed, instance.Missing
	testPlans(t, []planCase{
		{name: "what is stopped is replaced, then ended without a drain", state: group(1, made("a", 1, stopped)), want: []string{"create for unhealthy", "end a for unhealthy"}},
		{name: "what failed is", state: group(1, made("a", 1, failed)), want: []string{"create for unhealthy", "end a for unhealthy"}},
		{name: "what is missing is", state: group(1, made("a", 1, missing)), want: []string{"create for unhealthy", "end a for unhealthy"}},
		{
			name:  "several, the oldest first, never with more than one too many",
			state: group(2, made("b", 1, missing), made("a", 2, stopped)),
			want:  []string{"create for unhealthy", "end a for unhealthy", "create for unhealthy", "end b for unhealthy"},
		},
		{
			name:  "with no room it is ended first",
			state: group(2, made("x", 9, running, draining("expired", 3)), made("a", 1, missing), made("b", 1, running)),
			want:  []string{"end a for unhealthy", "create for scale-up"}, wake: 3,
		},
		{
			name:  "with no room at all it is replaced later",
			state: group(2, made("x", 9, running, draining("expired", 3)), made("y", 9, running, draining("expired", 3)), made("a", 1, missing), made("b", 1, running)),
			want:  []string{"end a for unhealthy"}, wake: 3,
		},
		{name: "what is impaired is replaced first", state: group(1, made("a", 1, impaired)), want: []string{"create for unhealthy"}},
		{name: "then it drains", state: group(1, made("a", 1, impaired), made("b", 0, pending, ordered)), want: []string{"drain a for unhealthy until +5m0s"}},
		{name: "or ends at once", state: group(1, made("a", 1, impaired), made("b", 0, pending, ordered)).with(undrained), want: []string{"end a for unhealthy"}},
		{name: "one after the other", state: group(2, made("a", 2, impaired), made("b", 1, impaired)), want: []string{"create for unhealthy"}},
		{name: "the rest wait while one drains", state: group(2, made("a", 2, impaired, draining("unhealthy", 3)), made("b", 1, impaired), made("c", 0, running)), wake: 3},
		{name: "those that are overdue come first", state: group(2, made("a", 30, running), made("b", 1, impaired)).with(ages(0, 30, 0)), want: []string{"create for expired"}, wake: 29},
		{name: "with an instance lacking too, it is what is missing that is created", state: group(3, made("a", 30, running), made("b", 1, running)).with(ages(0, 30, 0)), want: []string{"create for expired"}, wake: 29},
		{name: "on-demand instances that are gone end and are not replaced", state: group(0, made("a", 1, missing, onDemand), made("b", 1, failed, onDemand)), want: []string{"end a for unhealthy", "end b for unhealthy"}},
		{name: "on-demand instances that are impaired are left alone", state: group(0, made("a", 1, impaired, onDemand))},
	})
}

func TestPlanRotation(t *testing.T) {
	const pending, running, impaired, terminating = instance.Pending, instance.Running, instance.Impaired, instance.Terminating
	testPlans(t, []planCase{
		{name: "one that drifted is replaced first", state: group(2, made("a", 2, running, old), made("b", 1, running, old)), want: []string{"create for config-drift"}},
		{name: "one without a hash has drifted", state: group(1, made("a", 2, running, unhashed)), want: []string{"create for config-drift"}},
		{name: "one that was not rolled out has not, when the group has none", state: group(1, made("a", 2, running, old)).with(func(s *state) { s.infraConfigHash = "" })},
		{name: "then the oldest that drifted drains, not the oldest", state: group(3, made("x", 9, running), made("a", 2, running, old), made("b", 1, running, old), made("c", 0, pending, ordered)), want: []string{"drain a for config-drift until +5m0s"}},
		{name: "not before its replacement is ordered", state: group(1, made("a", 2, running, old), made("b", 0, pending)), want: []string{"order b"}},
		{name: "one after the other: what drains", state: group(2, made("a", 2, running, old, draining("config-drift", 3)), made("b", 1, running, old), made("c", 0, running)), wake: 3},
		{name: "what ends", state: group(2, made("a", 2, terminating, ending("config-drift")), made("b", 1, running, old), made("c", 0, running))},
		{name: "what ends by itself", state: group(2, made("a", 2, terminating), made("b", 1, running, old), made("c", 0, running))},
		{name: "what is pending", state: group(2, made("b", 1, running, old), made("c", 0, pending, ordered))},
		{name: "what is impaired", state: group(2, made("b", 1, running, old), made("c", 0, impaired)), want: []string{"create for unhealthy"}},
		{name: "what is lacking", state: group(2, made("b", 1, running, old)), want: []string{"create for scale-up"}},
		{name: "on-demand instances are in nobody's way and do not rotate", state: group(1, made("a", 1, running, old), made("b", 1, running, old, onDemand, draining("expired", 3))), want: []string{"create for config-drift"}, wake: 3},
		{name: "one of the eligible age is replaced", state: group(2, made("a", 20, running), made("b", 19, running)).with(ages(20, 30, 0)), want: []string{"create for expired"}, wake: 1},
		{name: "then the oldest drains", state: group(2, made("b", 21, running), made("a", 22, running), made("c", 0, pending, ordered)).with(ages(20, 30, 0)), want: []string{"drain a for expired until +5m0s"}, wake: 9},
		{name: "those that drifted come first", state: group(2, made("a", 22, running), made("b", 2, running, old)).with(ages(20, 0, 0)), want: []string{"create for config-drift"}, wake: 18},
		{name: "and drain first", state: group(2, made("a", 22, running), made("b", 2, running, old), made("c", 0, running)).with(ages(20, 0, 0)), want: []string{"drain b for config-drift until +5m0s"}, wake: 20},
	})
}

func TestPlanOnDemand(t *testing.T) {
	const pending, running = instance.Pending, instance.Running
	testPlans(t, []planCase{
		{name: "one that was decided on is ordered, after what the group lacks", state: group(1, made("a", 1, pending, onDemand)), want: []string{"create for scale-up", "order a"}},
		{name: "it ends at its age, whatever else drains", state: group(1, made("a", 30, running, onDemand), made("b", 9, running, draining("expired", 3)), made("c", 1, running)).with(ages(0, 0, 30)), want: []string{"drain a for expired until +5m0s"}, wake: 3},
		{name: "at once without a drain", state: group(0, made("a", 30, running, onDemand)).with(ages(0, 0, 30), undrained), want: []string{"end a for expired"}},
		{name: "the ages of managed instances are not its own", state: group(0, made("a", 30, running, onDemand)).with(ages(10, 20, 40)), wake: 10},
		{name: "nor are its ages theirs", state: group(1, made("a", 30, running)).with(ages(0, 0, 20))},
		{name: "one that was never ordered does not outlive its group", state: group(0, made("a", 1, pending, onDemand)).with(deleted), want: []string{"end a for unregistered"}},
		{name: "one that was ordered does", state: group(0, made("a", 1, pending, onDemand, ordered)).with(deleted)},
	})
}
