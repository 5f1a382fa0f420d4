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
	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// planTime is the time of the plans in the tables.
var planTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// newInstance returns an instance with the current configuration and an age in
// minutes. The provider lists it unless it is missing or pending.
func newInstance(id string, minutes int, state instance.State, changes ...func(*instance.Instance)) instance.Instance {
	i := instance.Instance{
		Record: instance.Record{ID: id, InfraConfigHash: "new", CreatedAt: planTime.Add(-time.Duration(minutes) * time.Minute)},
		State:  state,
		Known:  state != instance.Pending && state != instance.Missing,
	}
	for _, change := range changes {
		change(&i)
	}
	return i
}

func onDemand(i *instance.Instance) { i.OnDemand = true }
func known(i *instance.Instance)    { i.Known = true }
func old(i *instance.Instance)      { i.InfraConfigHash = "old" }
func unhashed(i *instance.Instance) { i.InfraConfigHash = "" }
func acked(i *instance.Instance)    { i.Drain.Acknowledged = true }

// draining adds a drain whose deadline is in minutes.
func draining(reason string, minutes int) func(*instance.Instance) {
	return func(i *instance.Instance) {
		i.Drain = &instance.Drain{Reason: reason, DeleteAt: planTime.Add(time.Duration(minutes) * time.Minute)}
	}
}

func deleting(reason string) func(*instance.Instance) {
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

// attempted sets how many minutes ago the creation of a was last attempted.
func attempted(minutes int) func(*state) {
	return func(s *state) {
		s.attempted = map[string]time.Time{"a": planTime.Add(-time.Duration(minutes) * time.Minute)}
	}
}

// String returns the text of an action in the tables.
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
		parts = append(parts, "until", fmt.Sprintf("+%v", a.deleteAt.Sub(planTime)))
	}
	return strings.Join(parts, " ")
}

type planCase struct {
	name  string
	state state
	want  []string
	// next is in minutes from now, 0 for never.
	next int
}

func testPlans(t *testing.T, tests []planCase) {
	t.Helper()
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			before := slices.Clone(tc.state.instances)
			actions, next := plan(tc.state, planTime)
			var got []string
			for _, a := range actions {
				got = append(got, a.String())
			}
			assert.Empty(t, cmp.Diff(tc.want, got), "plan (-want +got)")
			var wantNext time.Time
			if tc.next > 0 {
				wantNext = planTime.Add(time.Duration(tc.next) * time.Minute)
			}
			if !next.Equal(wantNext) {
				t.Errorf("next at %v, want %v", next, wantNext)
			}
			assert.Empty(t, cmp.Diff(before, tc.state.instances), "plan changed its input")
		})
	}
}

func TestPlanScaling(t *testing.T) {
	const pending, running, impaired, stopped, missing, terminating = instance.Pending, instance.Running, instance.Impaired, instance.Stopped, instance.Missing, instance.Terminating
	testPlans(t, []planCase{
		{name: "no desired and no existing instances", state: group(0)},
		{name: "a new group is scaled up", state: group(2), want: []string{"create for scale-up", "create for scale-up"}},
		{name: "a group that has its size needs no action", state: group(2, newInstance("a", 2, running), newInstance("b", 1, running))},
		{name: "pending instances count", state: group(2, newInstance("a", 1, pending, known)), want: []string{"create for scale-up"}},
		{name: "recorded instances are created before new ones", state: group(2, newInstance("a", 1, pending)), want: []string{"create recorded a", "create for scale-up"}},
		{name: "on-demand instances do not count", state: group(1, newInstance("a", 1, running, onDemand)), want: []string{"create for scale-up"}},
		{name: "terminating instances do not count", state: group(1, newInstance("a", 1, terminating)), want: []string{"create for scale-up"}},
		{
			name:  "draining surplus instances do not count",
			state: group(3, newInstance("a", 3, running, draining("scale-down", 1)), newInstance("b", 2, running, draining("scale-down", 2)), newInstance("c", 1, running)),
			want:  []string{"create for scale-up", "create for scale-up"}, next: 1,
		},
		{
			name:  "those that are replaced count: at most one more than the size",
			state: group(3, newInstance("a", 3, running, draining("unhealthy", 1)), newInstance("b", 2, running, draining("unhealthy", 2)), newInstance("c", 1, running)),
			want:  []string{"create for scale-up"}, next: 1,
		},
		{
			name:  "the oldest are deleted first, in any input order",
			state: group(1, newInstance("a", 1, running), newInstance("c", 3, running), newInstance("b", 2, running)),
			want:  []string{"drain c for scale-down until +5m0s", "drain b for scale-down until +5m0s"},
		},
		{name: "at the same age the smaller id is deleted first", state: group(1, newInstance("b", 1, running), newInstance("a", 1, running)), want: []string{"drain a for scale-down until +5m0s"}},
		{name: "without a drain timeout they are terminated at once", state: group(0, newInstance("a", 1, running)).with(undrained), want: []string{"terminate a for scale-down"}},
		{name: "pending ones are terminated at once", state: group(0, newInstance("a", 1, pending, known), newInstance("b", 1, pending)), want: []string{"terminate b for scale-down", "terminate a for scale-down"}},
		{
			name:  "the worst are deleted first: down, overdue, impaired, drifted, eligible, uncreated, oldest",
			state: group(0, newInstance("h", 2, running), newInstance("g", 1, running), newInstance("f", 1, pending), newInstance("e", 20, running), newInstance("d", 5, running, old), newInstance("c", 5, impaired), newInstance("b", 30, running), newInstance("a", 5, stopped)).with(ages(20, 30, 0)),
			want: []string{
				"terminate a for unhealthy", "drain b for expired until +5m0s", "drain c for unhealthy until +5m0s", "drain d for config-drift until +5m0s",
				"drain e for expired until +5m0s", "terminate f for scale-down", "drain h for scale-down until +5m0s", "drain g for scale-down until +5m0s",
			},
		},
		{
			name:  "uncreated instances are deleted before running ones, so that an exhausted quota costs no instance",
			state: group(1, newInstance("a", 2, running), newInstance("b", 1, pending)), want: []string{"terminate b for scale-down"},
		},
		{
			name:  "a healthy instance waits until the unhealthy one has a running replacement",
			state: group(1, newInstance("x", 9, impaired, draining("unhealthy", 4)), newInstance("a", 2, running), newInstance("b", 1, pending, known)), next: 4,
		},
		{
			name:  "then it is deleted",
			state: group(1, newInstance("x", 9, impaired, draining("unhealthy", 4)), newInstance("a", 2, running), newInstance("b", 1, running)),
			want:  []string{"drain a for scale-down until +5m0s"}, next: 4,
		},
		{
			name:  "an uncreated instance does not wait",
			state: group(1, newInstance("x", 9, impaired, draining("unhealthy", 4)), newInstance("a", 2, running), newInstance("b", 1, pending)),
			want:  []string{"terminate b for scale-down"}, next: 4,
		},
		{
			name:  "an unhealthy instance does not wait",
			state: group(1, newInstance("x", 9, impaired, draining("unhealthy", 4)), newInstance("a", 2, impaired), newInstance("b", 1, pending, known)),
			want:  []string{"drain a for unhealthy until +5m0s"}, next: 4,
		},
		{
			name:  "a deleted group is drained, but not its on-demand instances",
			state: group(0, newInstance("a", 2, running, old), newInstance("b", 1, running, onDemand)).with(deleted),
			want:  []string{"drain a for scale-down until +5m0s"},
		},
		{name: "an instance that was deleted externally is replaced once", state: group(1, newInstance("a", 2, missing), newInstance("b", 1, running)), want: []string{"terminate a for unhealthy"}},
	})
}

func TestPlanCompletion(t *testing.T) {
	const pending, running, stopped, missing, terminating = instance.Pending, instance.Running, instance.Stopped, instance.Missing, instance.Terminating
	testPlans(t, []planCase{
		{name: "the record of a deleted instance is removed", state: group(0, newInstance("a", 1, missing, deleting("expired"))), want: []string{"remove a"}},
		{name: "so is the record of an instance that was deleted before its creation", state: group(0, newInstance("a", 1, pending, deleting("expired"))), want: []string{"remove a"}},
		{name: "a lost termination is repeated", state: group(0, newInstance("a", 1, running, deleting("requested"))), want: []string{"terminate again a for requested"}},
		{name: "a termination in progress is not", state: group(0, newInstance("a", 1, terminating, deleting("requested")))},
		{name: "the same applies to on-demand instances", state: group(0, newInstance("a", 1, missing, onDemand, deleting("requested")), newInstance("b", 1, running, onDemand, deleting("requested"))), want: []string{"remove a", "terminate again b for requested"}},
		{name: "a drain lasts until its deadline", state: group(0, newInstance("a", 1, running, draining("expired", 1))), next: 1},
		{name: "an acknowledgement ends the drain", state: group(0, newInstance("a", 1, running, draining("expired", 1), acked)), want: []string{"terminate a for expired"}, next: 1},
		{name: "the deadline ends the drain", state: group(0, newInstance("a", 1, running, draining("expired", 0))), want: []string{"terminate a for expired"}},
		{name: "the drain of an instance that is down is over", state: group(0, newInstance("a", 1, stopped, draining("expired", 1))), want: []string{"terminate a for expired"}, next: 1},
		{name: "the same applies to the drain of an on-demand instance", state: group(0, newInstance("a", 1, running, onDemand, draining("expired", 0))), want: []string{"terminate a for expired"}},
		{name: "the end of a drain makes room", state: group(1, newInstance("a", 1, running, draining("scale-down", 0)), newInstance("b", 1, running, draining("scale-down", 1))), want: []string{"terminate a for scale-down", "create for scale-up"}, next: 1},
		{name: "an unknown instance gets time to register", state: group(1, newInstance("a", 4, pending)).with(fiveMinutes), want: []string{"create recorded a"}, next: 1},
		{name: "then it is created once more, at any age", state: group(1, newInstance("a", 500, pending)).with(fiveMinutes), want: []string{"create recorded a"}},
		{name: "an earlier attempt does not count", state: group(1, newInstance("a", 8, pending)).with(fiveMinutes, attempted(4)), want: []string{"create recorded a"}},
		{name: "then it is given up and replaced", state: group(1, newInstance("a", 8, pending)).with(fiveMinutes, attempted(3)), want: []string{"terminate a for unregistered", "create for scale-up"}},
		{name: "on-demand instances are created once more too", state: group(0, newInstance("a", 5, pending, onDemand)).with(fiveMinutes), want: []string{"create recorded a"}},
		{name: "but they are not replaced", state: group(0, newInstance("a", 5, pending, onDemand)).with(fiveMinutes, attempted(0)), want: []string{"terminate a for unregistered"}},
		{name: "a known instance is not given up", state: group(1, newInstance("a", 5, pending, known)).with(fiveMinutes, attempted(0))},
		{name: "without a timeout no instance is given up", state: group(1, newInstance("a", 5000, pending)).with(attempted(0)), want: []string{"create recorded a"}},
		{
			name: "provider ids are stored, even of instances that are being deleted",
			state: group(1, newInstance("a", 2, running), newInstance("b", 2, terminating, deleting("expired")), newInstance("c", 2, missing, deleting("expired"))).with(func(s *state) {
				s.providerIDs = map[string]string{"a": "vm-1", "b": "vm-2", "c": "vm-3"}
			}),
			want: []string{"set provider id a is vm-1", "set provider id b is vm-2", "remove c"},
		},
	})
}

// The missing instances that are left alone are the surplus only if they were missing from the
// beginning: otherwise the size was lowered while they existed.
func TestPlanOfSurplusAndMissingInstances(t *testing.T) {
	found := func(i *instance.Instance) { i.Found = true }
	leftAlone := func(s *state) { s.kept = map[string]bool{"c": true} }
	a, b := newInstance("a", 3, instance.Running), newInstance("b", 2, instance.Running)
	testPlans(t, []planCase{
		{name: "missing from the beginning", state: group(2, a, b, newInstance("c", 1, instance.Missing)).with(leftAlone), want: []string{"terminate c for unhealthy"}},
		{name: "found before", state: group(2, a, b, newInstance("c", 1, instance.Missing, found)).with(leftAlone)},
	})
}

func TestPlanForcedExpiry(t *testing.T) {
	const pending, running, impaired = instance.Pending, instance.Running, instance.Impaired
	testPlans(t, []planCase{
		{name: "the replacement is created first", state: group(1, newInstance("a", 30, running)).with(ages(0, 30, 0)), want: []string{"create for expired"}},
		{name: "not before the forced age", state: group(1, newInstance("a", 29, running)).with(ages(0, 30, 0)), next: 1},
		{name: "the replacement must be created", state: group(1, newInstance("a", 30, running), newInstance("b", 1, pending)).with(ages(0, 30, 0)), want: []string{"create recorded b"}, next: 29},
		{name: "then the old instance drains", state: group(1, newInstance("a", 30, running), newInstance("b", 1, pending, known)).with(ages(0, 30, 0)), want: []string{"drain a for expired until +5m0s"}, next: 29},
		{name: "or is terminated at once", state: group(1, newInstance("a", 30, running), newInstance("b", 1, pending, known)).with(ages(0, 30, 0), undrained), want: []string{"terminate a for expired"}, next: 29},
		{
			name:  "all at a time, even if others drain or are unhealthy",
			state: group(4, newInstance("x", 40, running, draining("config-drift", 3)), newInstance("a", 30, running), newInstance("b", 31, running), newInstance("c", 1, impaired), newInstance("d", 1, running)).with(ages(0, 30, 0)),
			want:  []string{"create for expired", "create for expired"}, next: 3,
		},
		{
			name:  "replaced instances are deleted while others wait",
			state: group(2, newInstance("a", 31, running), newInstance("b", 30, running), newInstance("c", 1, pending, known)).with(ages(0, 30, 0)),
			want:  []string{"drain a for expired until +5m0s", "create for expired"}, next: 29,
		},
	})
}

func TestPlanUnhealthy(t *testing.T) {
	const pending, running, impaired, stopped, failed, missing = instance.Pending, instance.Running, instance.Impaired, instance.Stopped, instance.Failed, instance.Missing
	testPlans(t, []planCase{
		{name: "a stopped instance is replaced, then terminated without a drain", state: group(1, newInstance("a", 1, stopped)), want: []string{"create for unhealthy", "terminate a for unhealthy"}},
		{name: "so is a failed instance", state: group(1, newInstance("a", 1, failed)), want: []string{"create for unhealthy", "terminate a for unhealthy"}},
		{name: "so is a missing instance", state: group(1, newInstance("a", 1, missing)), want: []string{"create for unhealthy", "terminate a for unhealthy"}},
		{
			name:  "several, the oldest first, with at most one surplus instance",
			state: group(2, newInstance("b", 1, missing), newInstance("a", 2, stopped)),
			want:  []string{"create for unhealthy", "terminate a for unhealthy", "create for unhealthy", "terminate b for unhealthy"},
		},
		{
			name:  "without room it is terminated first",
			state: group(2, newInstance("x", 9, running, draining("expired", 3)), newInstance("a", 1, missing), newInstance("b", 1, running)),
			want:  []string{"terminate a for unhealthy", "create for scale-up"}, next: 3,
		},
		{
			name:  "without room after that it is replaced later",
			state: group(2, newInstance("x", 9, running, draining("expired", 3)), newInstance("y", 9, running, draining("expired", 3)), newInstance("a", 1, missing), newInstance("b", 1, running)),
			want:  []string{"terminate a for unhealthy"}, next: 3,
		},
		{name: "an impaired instance is replaced first", state: group(1, newInstance("a", 1, impaired)), want: []string{"create for unhealthy"}},
		{name: "then it drains", state: group(1, newInstance("a", 1, impaired), newInstance("b", 0, pending, known)), want: []string{"drain a for unhealthy until +5m0s"}},
		{name: "or is terminated at once", state: group(1, newInstance("a", 1, impaired), newInstance("b", 0, pending, known)).with(undrained), want: []string{"terminate a for unhealthy"}},
		{name: "one after the other", state: group(2, newInstance("a", 2, impaired), newInstance("b", 1, impaired)), want: []string{"create for unhealthy"}},
		{name: "the others wait while one drains", state: group(2, newInstance("a", 2, impaired, draining("unhealthy", 3)), newInstance("b", 1, impaired), newInstance("c", 0, running)), next: 3},
		{name: "overdue instances come first", state: group(2, newInstance("a", 30, running), newInstance("b", 1, impaired)).with(ages(0, 30, 0)), want: []string{"create for expired"}, next: 29},
		{name: "with a missing instance too, only one is created", state: group(3, newInstance("a", 30, running), newInstance("b", 1, running)).with(ages(0, 30, 0)), want: []string{"create for expired"}, next: 29},
		{name: "on-demand instances that are down are terminated and not replaced", state: group(0, newInstance("a", 1, missing, onDemand), newInstance("b", 1, failed, onDemand)), want: []string{"terminate a for unhealthy", "terminate b for unhealthy"}},
		{name: "impaired on-demand instances need no action", state: group(0, newInstance("a", 1, impaired, onDemand))},
	})
}

// Instances that an operator names are replaced as impaired ones are, whatever the grant of a rotation
// says.
func TestPlanNamed(t *testing.T) {
	const pending, running, impaired, failed = instance.Pending, instance.Running, instance.Impaired, instance.Failed
	naming := func(ids ...string) func(*state) {
		return func(s *state) { s.replace = setOf(ids) }
	}
	two := func(more ...instance.Instance) state {
		return group(2, append([]instance.Instance{newInstance("a", 20, running), newInstance("b", 10, running)}, more...)...)
	}
	testPlans(t, []planCase{
		{name: "a replacement comes first", state: two().with(naming("b")), want: []string{"create for replaced"}},
		{name: "then the named instance drains, not the oldest", state: two(newInstance("c", 0, running)).with(naming("b")), want: []string{"drain b for replaced until +5m0s"}},
		{name: "not before its replacement works", state: two(newInstance("c", 0, pending, booting)).with(naming("b"))},
		{name: "its replacement is not replaced", state: group(2, newInstance("a", 20, running), newInstance("b", 10, running, draining(instance.ReasonReplaced, 3)), newInstance("c", 0, running)).with(naming("b")), next: 3},
		{name: "an instance that is gone is nothing", state: two().with(naming("c"))},
		{name: "one at a time", state: two().with(naming("a", "b")), want: []string{"create for replaced"}},
		{name: "an impaired instance comes first", state: group(2, newInstance("a", 20, running), newInstance("b", 10, impaired)).with(naming("a")), want: []string{"create for unhealthy"}},
		{name: "while it is replaced, the named instance waits", state: group(2, newInstance("a", 20, running), newInstance("b", 10, impaired, draining("unhealthy", 3)), newInstance("c", 0, running)).with(naming("a")), next: 3},
		{name: "a failed instance is replaced in any case", state: group(2, newInstance("a", 20, running), newInstance("b", 10, failed)).with(naming("b")), want: []string{"create for unhealthy", "terminate b for unhealthy"}},
		{name: "a rotation that is stopped changes nothing", state: two().with(naming("b"), granting(0, 0, 0)), want: []string{"create for replaced"}},
		{name: "an outdated instance is replaced for its name", state: group(2, newInstance("a", 20, running, old), newInstance("b", 10, running, old)).with(naming("b"), granting(0, 0, 0)), want: []string{"create for replaced"}},
		{name: "a smaller size takes it first", state: two(newInstance("c", 5, running)).with(naming("c")), want: []string{"drain c for replaced until +5m0s"}},
		{name: "on-demand instances have no replacement", state: group(1, newInstance("a", 20, running), newInstance("b", 10, running, onDemand)).with(naming("b"))},
		{name: "nothing is replaced while the size is not known", state: two().with(naming("b"), func(s *state) { s.unconfirmed = true })},
	})
	var instances []instance.Instance
	var ids []string
	for n := range 40 {
		ids = append(ids, fmt.Sprint("i", n))
		instances = append(instances, newInstance(ids[n], 40-n, running))
	}
	actions, _ := plan(group(40, instances...).with(naming(ids...)), planTime)
	assert.Len(t, actions, 4, "a tenth of the size")
}

func TestPlanRotation(t *testing.T) {
	const pending, running, impaired, terminating = instance.Pending, instance.Running, instance.Impaired, instance.Terminating
	testPlans(t, []planCase{
		{name: "a drifted instance is replaced first", state: group(2, newInstance("a", 2, running, old), newInstance("b", 1, running, old)), want: []string{"create for config-drift"}},
		{name: "an instance without a hash has drifted", state: group(1, newInstance("a", 2, running, unhashed)), want: []string{"create for config-drift"}},
		{name: "no instance has drifted if the group has no hash", state: group(1, newInstance("a", 2, running, old)).with(func(s *state) { s.infraConfigHash = "" })},
		{name: "then the oldest drifted instance drains, not the oldest of all", state: group(3, newInstance("x", 9, running), newInstance("a", 2, running, old), newInstance("b", 1, running, old), newInstance("c", 0, pending, known)), want: []string{"drain a for config-drift until +5m0s"}},
		{name: "not before its replacement is created", state: group(1, newInstance("a", 2, running, old), newInstance("b", 0, pending)), want: []string{"create recorded b"}},
		{name: "not while another one drains", state: group(2, newInstance("a", 2, running, old, draining("config-drift", 3)), newInstance("b", 1, running, old), newInstance("c", 0, running)), next: 3},
		{name: "not while another one is being terminated", state: group(2, newInstance("a", 2, terminating, deleting("config-drift")), newInstance("b", 1, running, old), newInstance("c", 0, running))},
		{name: "but while one that has been terminating for very long", state: group(2, newInstance("a", 2, terminating, deleting("config-drift")), newInstance("b", 1, running, old), newInstance("c", 0, running)).with(func(s *state) {
			s.stuck = map[string]bool{"a": true}
		}), want: []string{"create for config-drift"}},
		{name: "not while the provider terminates another one on its own", state: group(2, newInstance("a", 2, terminating), newInstance("b", 1, running, old), newInstance("c", 0, running))},
		{name: "not while another one is pending", state: group(2, newInstance("b", 1, running, old), newInstance("c", 0, pending, known))},
		{name: "not while another one is impaired", state: group(2, newInstance("b", 1, running, old), newInstance("c", 0, impaired)), want: []string{"create for unhealthy"}},
		{name: "not while one is missing", state: group(2, newInstance("b", 1, running, old)), want: []string{"create for scale-up"}},
		{name: "not while a missing one is left alone", state: group(2, newInstance("a", 2, instance.Missing), newInstance("b", 1, running, old)).with(func(s *state) {
			s.kept = map[string]bool{"a": true}
		})},
		{name: "on-demand instances do not rotate and do not block rotation", state: group(1, newInstance("a", 1, running, old), newInstance("b", 1, running, old, onDemand, draining("expired", 3))), want: []string{"create for config-drift"}, next: 3},
		{name: "an instance of the eligible age is replaced", state: group(2, newInstance("a", 20, running), newInstance("b", 19, running)).with(ages(20, 30, 0)), want: []string{"create for expired"}, next: 1},
		{name: "then the oldest drains", state: group(2, newInstance("b", 21, running), newInstance("a", 22, running), newInstance("c", 0, pending, known)).with(ages(20, 30, 0)), want: []string{"drain a for expired until +5m0s"}, next: 9},
		{name: "drifted instances come first", state: group(2, newInstance("a", 22, running), newInstance("b", 2, running, old)).with(ages(20, 0, 0)), want: []string{"create for config-drift"}, next: 18},
		{name: "and drain first", state: group(2, newInstance("a", 22, running), newInstance("b", 2, running, old), newInstance("c", 0, running)).with(ages(20, 0, 0)), want: []string{"drain b for config-drift until +5m0s"}, next: 20},
	})
}

func TestPlanOnDemand(t *testing.T) {
	const pending, running = instance.Pending, instance.Running
	testPlans(t, []planCase{
		{name: "a recorded instance is created after the group's missing ones", state: group(1, newInstance("a", 1, pending, onDemand)), want: []string{"create for scale-up", "create recorded a"}},
		{name: "it is deleted at its age, even if others drain", state: group(1, newInstance("a", 30, running, onDemand), newInstance("b", 9, running, draining("expired", 3)), newInstance("c", 1, running)).with(ages(0, 0, 30)), want: []string{"drain a for expired until +5m0s"}, next: 3},
		{name: "at once without a drain timeout", state: group(0, newInstance("a", 30, running, onDemand)).with(ages(0, 0, 30), undrained), want: []string{"terminate a for expired"}},
		{name: "the ages of managed instances do not apply to it", state: group(0, newInstance("a", 30, running, onDemand)).with(ages(10, 20, 40)), next: 10},
		{name: "and its age does not apply to them", state: group(1, newInstance("a", 30, running)).with(ages(0, 0, 20))},
		{name: "an uncreated instance is deleted with its group", state: group(0, newInstance("a", 1, pending, onDemand)).with(deleted), want: []string{"terminate a for unregistered"}},
		{name: "a created instance is not", state: group(0, newInstance("a", 1, pending, onDemand, known)).with(deleted)},
	})
}

// TestPlanOfAHugeSize: a plan has no more actions than a reconciliation carries out.
func TestPlanOfAHugeSize(t *testing.T) {
	actions, _ := plan(group(1<<31-1), planTime)
	assert.Len(t, actions, maxCreations+1)
}

// TestPlanOfGrowthWhileOthersDrain scales a group from 10 to 2 and back.
func TestPlanOfGrowthWhileOthersDrain(t *testing.T) {
	var instances []instance.Instance
	for n := range 10 {
		i := newInstance(fmt.Sprint("i", n), 10-n, instance.Running)
		if n < 8 {
			draining("scale-down", 3)(&i)
		}
		instances = append(instances, i)
	}
	actions, _ := plan(group(10, instances...), planTime)
	assert.Len(t, actions, 8)
	for _, a := range actions {
		assert.Equal(t, "create for scale-up", a.String())
	}
}

// TestPlanOfManyImpaired replaces a tenth of a group at a time.
func TestPlanOfManyImpaired(t *testing.T) {
	var instances []instance.Instance
	for n := range 40 {
		instances = append(instances, newInstance(fmt.Sprint("i", n), 40-n, instance.Impaired))
	}
	actions, _ := plan(group(40, instances...), planTime)
	assert.Len(t, actions, 4)
}

// TestPlanOfOneImpaired replaces one impaired instance of a large group once: each further replacement
// would make another instance surplus, which works.
func TestPlanOfOneImpaired(t *testing.T) {
	instances := []instance.Instance{newInstance("i0", 60, instance.Impaired)}
	for n := range 39 {
		instances = append(instances, newInstance(fmt.Sprint("i", n+1), 50-n, instance.Running))
	}
	actions, _ := plan(group(40, instances...), planTime)
	assert.Len(t, actions, 1)
	instances = append(instances, newInstance("i40", 1, instance.Pending, booting))
	actions, _ = plan(group(40, instances...), planTime)
	assert.Empty(t, actions)
	instances[1].State = instance.Impaired
	actions, _ = plan(group(40, instances...), planTime)
	assert.Len(t, actions, 1, "another one has no replacement yet")
	instances[2].CreatedAt = planTime.Add(-2 * time.Hour)
	actions, _ = plan(group(40, instances...).with(ages(0, 90, 0)), planTime)
	assert.Len(t, actions, 2, "an overdue one, and the other impaired one")
}

// awaited is an instance whose agent has been awaited for some minutes.
func awaited(minutes int) func(*instance.Instance) {
	return func(i *instance.Instance) {
		i.Known = true
		i.Agent = instance.Agent{State: instance.AgentAwaited, Since: planTime.Add(-time.Duration(minutes) * time.Minute)}
	}
}

func booting(i *instance.Instance) {
	i.Known, i.Agent.State = true, instance.AgentAwaited
}

func notReady(i *instance.Instance)     { i.Agent.NotReady = "it has not joined" }
func registered(i *instance.Instance)   { i.Registration = &instance.Registration{} }
func reporting(i *instance.Instance)    { i.Agent.State = instance.AgentReporting }
func unknownAgent(i *instance.Instance) { i.Agent.State = instance.AgentUnknown }
func lost(i *instance.Instance)         { i.Agent.State = instance.AgentLost }

func keepsUnhealthy(s *state) { s.keepUnhealthy = true }

// noticed announces a termination in minutes, 0 for no time.
func noticed(minutes int) func(*instance.Instance) {
	return func(i *instance.Instance) {
		i.Agent = instance.Agent{State: instance.AgentReporting, Notice: &instance.Notice{Action: "terminate"}}
		if minutes > 0 {
			i.Agent.Notice.Deadline = planTime.Add(time.Duration(minutes) * time.Minute)
		}
	}
}

// failedUntil describes a group whose last instance has not registered.
func failedUntil(minutes int) func(*state) {
	return func(s *state) { s.createAfter = planTime.Add(time.Duration(minutes) * time.Minute) }
}

func TestPlanAgents(t *testing.T) {
	const pending, running, impaired = instance.Pending, instance.Running, instance.Impaired
	testPlans(t, []planCase{
		{name: "rotation waits until the replacement reports", state: group(1, newInstance("a", 9, running, old, reporting), newInstance("b", 1, pending, awaited(1)))},
		{name: "also while it boots", state: group(1, newInstance("a", 9, running, old, reporting), newInstance("b", 1, pending, booting))},
		{name: "also for its first report", state: group(1, newInstance("a", 9, running, old, reporting), newInstance("b", 1, pending, awaited(1), registered))},
		{name: "also until it is ready", state: group(1, newInstance("a", 9, running, old, reporting), newInstance("b", 1, pending, awaited(1), registered, notReady))},
		{name: "then it goes on", state: group(1, newInstance("a", 9, running, old, reporting), newInstance("b", 1, running, reporting)), want: []string{"drain a for config-drift until +5m0s"}},
		{name: "a new leader waits for reports before it rotates", state: group(2, newInstance("a", 9, running, old, reporting), newInstance("b", 9, running, unknownAgent))},
		{name: "and before it deletes an instance for another", state: group(1, newInstance("a", 9, running, old, unknownAgent), newInstance("b", 1, running, unknownAgent))},
		{name: "no other one is deleted for a candidate that waits", state: group(1, newInstance("a", 9, running, reporting), newInstance("b", 9, running, unknownAgent), newInstance("c", 9, running, unknownAgent)).with(removing("a"))},
		{name: "a lost agent is not replaced where that is not wanted", state: group(1, newInstance("a", 9, impaired, lost)).with(keepsUnhealthy)},
		{name: "but an instance is where nothing runs", state: group(1, newInstance("a", 9, instance.Stopped)).with(keepsUnhealthy), want: []string{"create for unhealthy", "terminate a for unhealthy"}},
		{name: "a lost agent is replaced first", state: group(1, newInstance("a", 9, impaired, lost)), want: []string{"create for unhealthy"}},
		{name: "and drained when the replacement reports", state: group(1, newInstance("a", 9, impaired, lost), newInstance("b", 1, pending, awaited(1)))},
		{name: "not before", state: group(1, newInstance("a", 9, impaired, lost), newInstance("b", 1, running, reporting)), want: []string{"drain a for unhealthy until +5m0s"}},
		{name: "an instance that is coming up is surplus first", state: group(1, newInstance("a", 9, running, reporting), newInstance("b", 1, pending, awaited(1))), want: []string{"terminate b for scale-down"}},
		{name: "one of an older configuration is replaced at once", state: group(1, newInstance("a", 1, pending, awaited(1), old)), want: []string{"create for config-drift", "terminate a for config-drift"}},
		{name: "also beside instances that serve", state: group(1, newInstance("a", 9, running, old, reporting), newInstance("b", 1, pending, awaited(1), old)), want: []string{"terminate b for config-drift"}},
		{name: "an agent has time to register", state: group(1, newInstance("a", 4, pending, awaited(4))).with(fiveMinutes), next: 1},
		{name: "counted from when the instance runs", state: group(1, newInstance("a", 9, pending, booting)).with(fiveMinutes)},
		{name: "then the instance is given up, and no other is created yet", state: group(2, newInstance("a", 5, pending, awaited(5))).with(fiveMinutes), want: []string{"terminate a for unregistered"}},
		{name: "also an instance that is not ready", state: group(2, newInstance("a", 5, pending, awaited(5), registered, notReady)).with(fiveMinutes), want: []string{"terminate a for unregistered"}},
		{name: "but not one whose first report is late", state: group(1, newInstance("a", 5, pending, awaited(5), registered)).with(fiveMinutes)},
		{name: "so is an on-demand instance", state: group(0, newInstance("a", 5, pending, awaited(5), onDemand)).with(fiveMinutes), want: []string{"terminate a for unregistered"}},
		{name: "one that has registered is not", state: group(1, newInstance("a", 5, pending, awaited(5), registered)).with(fiveMinutes)},
		{name: "the next one is delayed", state: group(3, newInstance("a", 9, running, reporting)).with(failedUntil(2)), next: 2},
		{name: "and alone", state: group(3, newInstance("a", 9, running, reporting)).with(failedUntil(0)), want: []string{"create for scale-up"}},
		{name: "until it reports", state: group(3, newInstance("a", 9, running, reporting), newInstance("b", 1, pending, awaited(1))).with(failedUntil(0))},
	})
}

func TestPlanNotices(t *testing.T) {
	const running = instance.Running
	testPlans(t, []planCase{
		{name: "a drain begins at once, and the replacement", state: group(1, newInstance("a", 9, running, noticed(0))), want: []string{"drain a for spot until +5m0s", "create for spot"}},
		{name: "the drain lasts until the deadline", state: group(1, newInstance("a", 9, running, noticed(2))), want: []string{"drain a for spot until +2m0s", "create for spot"}},
		{name: "at most the drain timeout", state: group(1, newInstance("a", 9, running, noticed(9))), want: []string{"drain a for spot until +5m0s", "create for spot"}},
		{name: "without a drain timeout there is none", state: group(1, newInstance("a", 9, running, noticed(2))).with(undrained), want: []string{"terminate a for spot", "create for spot"}},
		{
			name:  "all at a time",
			state: group(3, newInstance("a", 9, running, noticed(2)), newInstance("b", 9, running, noticed(2)), newInstance("c", 9, running, noticed(2))),
			want:  []string{"drain a for spot until +2m0s", "drain b for spot until +2m0s", "drain c for spot until +2m0s", "create for spot", "create for spot", "create for spot"},
		},
		{
			name:  "beside those that are missing",
			state: group(3, newInstance("a", 9, running, noticed(2)), newInstance("b", 9, running, noticed(2))),
			want:  []string{"drain a for spot until +2m0s", "drain b for spot until +2m0s", "create for spot", "create for spot", "create for scale-up"},
		},
		{
			name:  "those that drain are replaced, also if another leader began to drain them",
			state: group(2, newInstance("a", 9, running, draining("spot", 2)), newInstance("b", 9, running, draining("spot", 2))),
			want:  []string{"create for scale-up", "create for scale-up"}, next: 2,
		},
		{name: "a surplus instance has no replacement", state: group(1, newInstance("a", 9, running, noticed(2)), newInstance("b", 9, running, reporting)), want: []string{"drain a for spot until +2m0s"}},
		{name: "nor has an on-demand instance", state: group(0, newInstance("a", 9, running, noticed(2), onDemand)), want: []string{"drain a for spot until +2m0s"}},
	})
}

// removing sets the instances to delete first when there are too many.
func removing(ids ...string) func(*state) {
	return func(s *state) {
		s.removeFirst = map[string]bool{}
		for _, id := range ids {
			s.removeFirst[id] = true
		}
	}
}

// replaced marks one of the instances to remove as deleted and replaced.
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
