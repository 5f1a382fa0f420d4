// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package loadbalancers

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/testing/metricstest"
)

// targetStates are the expected targets of a load balancer.
type targetStates = map[string]provider.TargetState

// run runs a test in a bubble of synctest, with a term that has begun.
func run(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.lead()
		test(w)
		w.stop()
	})
}

func (w *world) expect(want targetStates) {
	w.t.Helper()
	assert.Equal(w.t, want, w.balancer.States("web"))
}

func TestRegisteredAtTheFirstGoodReport(t *testing.T) {
	run(t, func(w *world) {
		w.set("a", booting)
		w.pass(time.Hour)
		w.expect(targetStates{})
		w.set("a", registered)
		w.pass(time.Hour)
		w.expect(targetStates{})
		// The agent has registered before this server leads.
		w.set("a", func(i *instance.Instance) { i.State, i.Agent.State = instance.Running, instance.AgentUnknown })
		w.pass(time.Hour)
		w.expect(targetStates{})
		w.set("a", reporting)
		w.pass(time.Second)
		w.expect(targetStates{"a": provider.Registered})
	})
}

func TestRegisteredWithAllLoadBalancersOfTheGroup(t *testing.T) {
	run(t, func(w *world) {
		w.wanted = []string{"web", "api"}
		w.set("a", reporting)
		w.pass(time.Second)
		w.expect(targetStates{"a": provider.Registered})
		assert.Equal(t, targetStates{"a": provider.Registered}, w.balancer.States("api"))
	})
}

func TestWithoutAgentsTheProviderReports(t *testing.T) {
	run(t, func(w *world) {
		w.stop()
		w.syncer.Agents = false
		w.lead()
		w.syncer.Agents = false
		w.set("a", booting)
		w.pass(time.Hour)
		w.expect(targetStates{})
		w.set("a", func(i *instance.Instance) { i.State, i.Agent.State = instance.Running, instance.AgentNone })
		w.pass(time.Second)
		w.expect(targetStates{"a": provider.Registered})
	})
}

func TestWhatIsNotHealthyStaysATarget(t *testing.T) {
	for name, change := range map[string]func(*instance.Instance){"agent lost": lost, "missing": missing} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				w.set("a", reporting)
				w.pass(time.Second)
				w.set("a", change)
				w.pass(time.Hour)
				w.expect(targetStates{"a": provider.Registered})
				// Another client has removed it.
				w.balancer.Remove("web", "a")
				w.pass(time.Hour)
				w.expect(targetStates{})
				w.set("a", reporting)
				w.pass(time.Second)
				w.expect(targetStates{"a": provider.Registered})
			})
		})
	}
}

func TestTerminationWaitsForTheDeregistrationDelay(t *testing.T) {
	run(t, func(w *world) {
		w.set("a", reporting)
		w.set("b", reporting)
		w.pass(time.Minute)
		w.set("a", draining)
		assert.True(t, w.waits("a"), "before the deregistration has begun")
		w.pass(time.Second)
		w.expect(targetStates{"a": provider.Draining, "b": provider.Registered})
		w.pass(w.balancer.Delay - 2*time.Second)
		assert.True(t, w.waits("a"), "before the delay is over")
		w.takeChanged()
		w.pass(10 * time.Second)
		assert.False(t, w.waits("a"), "after the delay")
		assert.Equal(t, 1, w.takeChanged(), "reported changes")
		w.expect(targetStates{"b": provider.Registered})
	})
}

func TestInstancesThatWereNeverTargetsDoNotWait(t *testing.T) {
	run(t, func(w *world) {
		w.set("a", booting)
		w.pass(time.Minute)
		w.set("a", draining)
		assert.False(t, w.waits("a"))
		var called []string
		w.balancer.Called = func(operation, _ string, _ []string) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			called = append(called, operation)
			return nil
		}
		w.pass(10 * time.Second)
		assert.NotContains(t, called, "deregister")
	})
}

func TestWithoutAListTerminationWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		failing := true
		w.balancer.Called = func(operation, _ string, _ []string) error {
			if failing && operation == "list" {
				return providertest.ErrUnavailable
			}
			return nil
		}
		w.set("a", reporting)
		w.lead()
		w.pass(time.Hour)
		w.expect(targetStates{"a": provider.Registered})
		w.set("a", draining)
		w.pass(time.Hour)
		w.expect(targetStates{})
		assert.True(t, w.waits("a"), "although it is no target, which is not known")
		assert.Positive(t, w.listErrors)
		w.takeChanged()
		failing = false
		w.pass(2 * time.Minute)
		assert.False(t, w.waits("a"))
		assert.Positive(t, w.takeChanged())

		// Another failure does not lose the known targets.
		failing = true
		w.pass(time.Hour)
		assert.False(t, w.waits("a"))
		w.stop()
	})
}

// A former leader may have registered an instance with a load balancer that its group no
// longer lists. The next leader does not know before it has listed the targets.
func TestBeforeTheFirstListTerminationWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		failing := true
		w.balancer.Called = func(string, string, []string) error {
			if failing {
				return providertest.ErrUnavailable
			}
			return nil
		}
		w.wanted = nil
		w.set("a", reporting)
		w.set("a", draining)
		w.balancer.Put("api", provider.Target{ID: "a"})
		w.lead()
		w.pass(time.Hour)
		assert.True(t, w.waits("a"))
		failing = false
		w.pass(time.Hour)
		assert.False(t, w.waits("a"))
		assert.Empty(t, w.balancer.States("api"))
		w.stop()
	})
}

func TestANewTermReadsTheTargets(t *testing.T) {
	run(t, func(w *world) {
		w.set("drained", reporting)
		w.set("kept", reporting)
		w.set("new", reporting)
		w.set("elsewhere", reporting)
		w.pass(time.Minute)
		w.stop()
		// The next leader finds targets by provider id, foreign targets, and targets of a
		// load balancer that the group does not list.
		w.balancer.Remove("web", "new")
		w.balancer.Remove("web", "kept")
		w.balancer.Put("web", provider.Target{ProviderID: "vm-kept"})
		w.balancer.Put("web", provider.Target{ProviderID: "of another client"})
		w.balancer.Put("web", provider.Target{ID: "of another shard"})
		w.balancer.Put("api", provider.Target{ID: "elsewhere"})
		w.set("drained", draining)
		var calls []string
		w.balancer.Called = func(operation, endpoint string, ids []string) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if operation != "list" {
				calls = append(calls, operation+" "+endpoint+" "+strings.Join(ids, " "))
			}
			return nil
		}
		w.lead()
		w.pass(time.Minute)
		slices.Sort(calls)
		assert.Equal(t, []string{"deregister api elsewhere", "deregister web drained", "register web new"}, calls)
	})
}

func TestTheGroupHasAnotherLoadBalancer(t *testing.T) {
	run(t, func(w *world) {
		w.set("a", reporting)
		w.pass(time.Minute)
		w.unconfirmed, w.wanted = true, []string{"api"}
		w.pass(time.Hour)
		w.expect(targetStates{"a": provider.Registered})
		w.unconfirmed = false
		w.pass(time.Second)
		w.expect(targetStates{"a": provider.Draining})
		assert.Equal(t, targetStates{"a": provider.Registered}, w.balancer.States("api"))
		// The load balancer is back before the delay is over.
		w.wanted = []string{"web"}
		w.pass(time.Second)
		w.expect(targetStates{"a": provider.Registered})
	})
}

func TestTheConfigurationDropsALoadBalancer(t *testing.T) {
	run(t, func(w *world) {
		w.set("a", reporting)
		w.pass(time.Minute)
		w.configure("api")
		w.wanted = []string{"api"}
		w.pass(time.Second)
		w.expect(targetStates{"a": provider.Draining})
		w.set("a", draining)
		assert.True(t, w.waits("a"))
		w.pass(5 * time.Minute)
		assert.False(t, w.waits("a"))
		assert.Len(t, w.syncer.parts, 1)
	})
}

// If the cloud rejects one instance, the others are registered nevertheless. Its calls are
// repeated with a growing delay.
func TestOneInstanceIsRejected(t *testing.T) {
	run(t, func(w *world) {
		calls, rejecting := 0, true
		w.balancer.Called = func(operation, _ string, ids []string) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if operation == "register" && slices.Contains(ids, "bad") && rejecting {
				calls++
				return providertest.ErrUnavailable
			}
			return nil
		}
		want := targetStates{}
		for _, id := range []string{"a", "b", "bad", "c", "d", "e"} {
			w.set(id, reporting)
			want[id] = provider.Registered
		}
		w.pass(time.Second)
		delete(want, "bad")
		w.expect(want)
		require.Equal(t, []string{"bad"}, slices.Compact(w.failures))
		calls = 0
		w.pass(10 * time.Minute)
		assert.InDelta(t, 13, calls, 3, "calls in ten minutes")
		rejecting = false
		w.pass(2 * time.Minute)
		want["bad"] = provider.Registered
		w.expect(want)
	})
}

func TestOnlyTheLeaderMakesCalls(t *testing.T) {
	run(t, func(w *world) {
		w.set("a", reporting)
		w.leads.Store(false)
		w.pass(time.Hour)
		w.expect(targetStates{})
		assert.Empty(t, w.failures)
		assert.Zero(t, w.listErrors)
		w.leads.Store(true)
		w.pass(time.Minute)
		w.expect(targetStates{"a": provider.Registered})
	})
}

func TestDeletedInstancesAreForgotten(t *testing.T) {
	run(t, func(w *world) {
		w.set("a", reporting)
		w.pass(time.Minute)
		w.set("a", func(i *instance.Instance) { i.DeletedAt = time.Now() })
		w.pass(5 * time.Minute)
		w.expect(targetStates{})
		w.mu.Lock()
		delete(w.instances, "a")
		w.mu.Unlock()
		w.pass(2 * time.Minute)
		assert.Empty(t, w.syncer.parts["web"].targets)
	})
}

func TestMetrics(t *testing.T) {
	run(t, func(w *world) {
		for _, id := range []string{"a", "b", "c"} {
			w.set(id, reporting)
		}
		w.pass(time.Minute)
		w.set("c", draining)
		w.pass(10 * time.Second)
		assert.Equal(t, []string{
			`nstance_server_load_balancer_listed{load_balancer="api"} 1`,
			`nstance_server_load_balancer_listed{load_balancer="web"} 1`,
			`nstance_server_load_balancer_targets{load_balancer="api",state="deregistering"} 0`,
			`nstance_server_load_balancer_targets{load_balancer="api",state="registered"} 0`,
			`nstance_server_load_balancer_targets{load_balancer="api",state="registering"} 0`,
			`nstance_server_load_balancer_targets{load_balancer="web",state="deregistering"} 1`,
			`nstance_server_load_balancer_targets{load_balancer="web",state="registered"} 2`,
			`nstance_server_load_balancer_targets{load_balancer="web",state="registering"} 0`,
		}, metricstest.SeriesOf(t, w.syncer))
	})
}
