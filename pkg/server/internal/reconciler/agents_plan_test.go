// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

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

func registered(i *instance.Instance)   { i.Registration = &instance.Registration{} }
func reporting(i *instance.Instance)    { i.Agent.State = instance.AgentReporting }
func unknownAgent(i *instance.Instance) { i.Agent.State = instance.AgentUnknown }
func lost(i *instance.Instance)         { i.Agent.State = instance.AgentLost }

// noticed announces a termination in minutes, 0 for no time.
func noticed(minutes int) func(*instance.Instance) {
	return func(i *instance.Instance) {
		i.Agent = instance.Agent{State: instance.AgentReporting, Notice: &instance.Notice{Action: "terminate"}}
		if minutes > 0 {
			i.Agent.Notice.Deadline = planTime.Add(time.Duration(minutes) * time.Minute)
		}
	}
}

// failedUntil makes the group one whose last instance has not registered.
func failedUntil(minutes int) func(*state) {
	return func(s *state) { s.createAfter = planTime.Add(time.Duration(minutes) * time.Minute) }
}

func TestPlanAgents(t *testing.T) {
	const pending, running, impaired = instance.Pending, instance.Running, instance.Impaired
	testPlans(t, []planCase{
		{name: "rotation waits until the replacement reports", state: group(1, newInstance("a", 9, running, old, reporting), newInstance("b", 1, pending, awaited(1)))},
		{name: "also while it boots", state: group(1, newInstance("a", 9, running, old, reporting), newInstance("b", 1, pending, booting))},
		{name: "also for its first report", state: group(1, newInstance("a", 9, running, old, reporting), newInstance("b", 1, pending, awaited(1), registered))},
		{name: "then it goes on", state: group(1, newInstance("a", 9, running, old, reporting), newInstance("b", 1, running, reporting)), want: []string{"drain a for config-drift until +5m0s"}},
		{name: "a new leader waits for reports before it rotates", state: group(2, newInstance("a", 9, running, old, reporting), newInstance("b", 9, running, unknownAgent))},
		{name: "and before it deletes an instance for another", state: group(1, newInstance("a", 9, running, old, unknownAgent), newInstance("b", 1, running, unknownAgent))},
		{name: "no other one is deleted for a candidate that waits", state: group(1, newInstance("a", 9, running, reporting), newInstance("b", 9, running, unknownAgent), newInstance("c", 9, running, unknownAgent)).with(removing("a"))},
		{name: "a lost agent is replaced first", state: group(1, newInstance("a", 9, impaired, lost)), want: []string{"create for unhealthy"}},
		{name: "and drained when the replacement reports", state: group(1, newInstance("a", 9, impaired, lost), newInstance("b", 1, pending, awaited(1)))},
		{name: "not before", state: group(1, newInstance("a", 9, impaired, lost), newInstance("b", 1, running, reporting)), want: []string{"drain a for unhealthy until +5m0s"}},
		{name: "an instance that is coming up is surplus first", state: group(1, newInstance("a", 9, running, reporting), newInstance("b", 1, pending, awaited(1))), want: []string{"terminate b for scale-down"}},
		{name: "one of an older configuration is replaced at once", state: group(1, newInstance("a", 1, pending, awaited(1), old)), want: []string{"create for config-drift", "terminate a for config-drift"}},
		{name: "also beside instances that serve", state: group(1, newInstance("a", 9, running, old, reporting), newInstance("b", 1, pending, awaited(1), old)), want: []string{"terminate b for config-drift"}},
		{name: "an agent has time to register", state: group(1, newInstance("a", 4, pending, awaited(4))).with(fiveMinutes), next: 1},
		{name: "counted from when the instance runs", state: group(1, newInstance("a", 9, pending, booting)).with(fiveMinutes)},
		{name: "then the instance is given up, and no other is created yet", state: group(2, newInstance("a", 5, pending, awaited(5))).with(fiveMinutes), want: []string{"terminate a for unregistered"}},
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
