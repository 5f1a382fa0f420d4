// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package loadbalancers

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/testing/metricstest"
)

// entries are the endpoints of each entry of load_balancers.
type entries = map[string][]string

// setEntries sets the entries of the configuration, and the list of the group if there is one.
func (w *world) setEntries(all entries, list ...string) {
	c := &config.Config{LoadBalancers: map[string]provider.LoadBalancer{}, Templates: map[string]config.Template{"worker": {}}}
	for key, endpoints := range all {
		c.LoadBalancers[key] = provider.LoadBalancer{
			Key: key, Settings: providertest.BalancerSettings{Endpoint: endpoints[0], Others: endpoints[1:]},
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.config = c
	if list != nil {
		w.wanted = list
	}
}

// If entries share a target group, an instance stays its target without a call as long as the
// entries of its group list it.
func TestEntriesThatShareATargetGroup(t *testing.T) {
	type state struct {
		entries entries
		wanted  []string
	}
	for _, tc := range []struct {
		name          string
		before, after state
		calls         map[string]int
	}{
		{
			"an entry grows", state{entries{"x": {"web"}}, []string{"x"}}, state{entries{"x": {"web", "api"}}, []string{"x"}},
			map[string]int{"register api a": 1},
		},
		{
			"an entry shrinks", state{entries{"x": {"web", "api"}}, []string{"x"}}, state{entries{"x": {"api"}}, []string{"x"}},
			map[string]int{"deregister web a": 1},
		},
		{
			"the order of an entry is another", state{entries{"x": {"web", "api"}}, []string{"x"}}, state{entries{"x": {"api", "web"}}, []string{"x"}},
			map[string]int{},
		},
		{
			"an entry has another key", state{entries{"x": {"web"}}, []string{"x"}}, state{entries{"y": {"web"}}, []string{"y"}},
			map[string]int{},
		},
		{
			"an entry is divided", state{entries{"x": {"web", "api"}}, []string{"x"}}, state{entries{"x": {"web"}, "y": {"api"}}, []string{"x", "y"}},
			map[string]int{},
		},
		{
			"a group drops the entry that has more", state{entries{"x": {"web"}, "y": {"web", "api"}}, []string{"x", "y"}},
			state{entries{"x": {"web"}, "y": {"web", "api"}}, []string{"x"}},
			map[string]int{"deregister api a": 1},
		},
		{
			"a group drops the entry that has less", state{entries{"x": {"web"}, "y": {"web", "api"}}, []string{"x", "y"}},
			state{entries{"x": {"web"}, "y": {"web", "api"}}, []string{"y"}},
			map[string]int{},
		},
		{
			"an entry that the group does not have is added", state{entries{"x": {"web"}}, []string{"x"}},
			state{entries{"x": {"web"}, "y": {"web", "api"}}, []string{"x"}},
			map[string]int{},
		},
		{
			"the group drops an entry that moves", state{entries{"x": {"web"}}, []string{"x"}}, state{entries{"y": {"web"}}, nil},
			map[string]int{"deregister web a": 1},
		},
	} {
		for when, newTerm := range map[string]bool{"in one term": false, "before a new term": true} {
			t.Run(tc.name+" "+when, func(t *testing.T) {
				run(t, func(w *world) {
					w.setEntries(tc.before.entries)
					w.want(tc.before.wanted...)
					w.set("a", reporting)
					w.pass(time.Hour)
					for _, endpoints := range tc.before.entries {
						for _, endpoint := range endpoints {
							assert.Equal(t, targetStates{"a": provider.Registered}, w.balancer.States(endpoint), endpoint)
						}
					}
					calls := w.countCalls()
					w.setEntries(tc.after.entries)
					w.want(tc.after.wanted...)
					w.pass(time.Second)
					if newTerm {
						w.lead()
					}
					for range 10 {
						w.pass(time.Minute)
					}
					assert.Equal(t, tc.calls, calls)
				})
			})
		}
	}
}

// If an entry changes while an instance drains, the instance is deregistered from the target
// groups of the earlier entry, and is not terminated before the delay is over.
func TestAnEntryThatChangesWhileAnInstanceDrains(t *testing.T) {
	for name, after := range map[string]entries{
		"grows": {"x": {"web", "api"}}, "is another": {"x": {"api"}}, "has another key": {"y": {"web"}}, "is removed": {},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				w.setEntries(entries{"x": {"web"}})
				w.want("x")
				w.set("a", reporting)
				w.pass(time.Hour)
				calls := w.countCalls()
				w.set("a", draining)
				w.pass(10 * time.Second)
				w.setEntries(after)
				w.want()
				for key := range after {
					w.want(key)
				}
				w.pass(w.balancer.Delay - 12*time.Second)
				assert.True(t, w.waits("a"), "before the delay is over")
				w.pass(10 * time.Second)
				assert.False(t, w.waits("a"), "after the delay")
				assert.Equal(t, 1, calls["deregister web a"])
				assert.Zero(t, calls["register web a"]+calls["register api a"])
				w.set("a", func(i *instance.Instance) { i.DeletedAt = time.Now() })
				w.pass(time.Hour)
			})
		})
	}
}

// An entry that the configuration drops and has again before the delay is over.
func TestAnEntryThatComesBack(t *testing.T) {
	run(t, func(w *world) {
		w.set("a", reporting)
		w.pass(time.Hour)
		calls := w.countCalls()
		w.configure("api")
		w.want("api")
		w.pass(10 * time.Second)
		w.expect(targetStates{"a": provider.Draining})
		w.configure("web", "api")
		w.want("web")
		w.pass(time.Hour)
		w.expect(targetStates{"a": provider.Registered})
		assert.Equal(t, map[string]int{"deregister web a": 1, "register api a": 1, "register web a": 1, "deregister api a": 1}, calls)
	})
}

// An entry and the list of the group that names it change together: nothing is deregistered
// before Enqueue is called for the new configuration, or if it changes during a sync.
func TestEntryAndListChangeTogether(t *testing.T) {
	for name, change := range map[string]func(w *world, change func()){
		"not enqueued": func(_ *world, change func()) { change() },
		"before a group is read": func(w *world, change func()) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.beforeGet = sync.OnceFunc(change)
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				w.setEntries(entries{"x": {"web"}}, "x")
				w.set("a", reporting)
				w.pass(time.Hour)
				calls := w.countCalls()
				for _, key := range []string{"y", "z", "x"} {
					change(w, func() { w.setEntries(entries{key: {"web"}}, key) })
					time.Sleep(time.Hour)
					synctest.Wait()
					assert.Empty(t, calls)
					w.pass(time.Hour)
				}
				// Another entry is not mistaken for the dropped entry.
				change(w, func() { w.setEntries(entries{"y": {"api"}}, "y") })
				time.Sleep(time.Hour)
				synctest.Wait()
				w.pass(time.Hour)
				assert.Equal(t, map[string]int{"deregister web a": 1, "register api a": 1}, calls)
			})
		})
	}
}

// An instance that is to be terminated while an entry is new waits for that entry.
func TestTerminationWaitsForAnEntryThatIsNotEnqueued(t *testing.T) {
	run(t, func(w *world) {
		w.setEntries(entries{"x": {"web"}}, "x")
		w.set("a", reporting)
		w.set("b", reporting)
		w.pass(time.Hour)
		w.balancer.Remove("web", "a")
		w.set("a", draining)
		w.pass(time.Hour)
		assert.False(t, w.waits("a"))
		w.balancer.Put("api", provider.Target{ID: "a"})
		w.setEntries(entries{"x": {"web", "api"}})
		assert.True(t, w.waits("a"), "the targets of what is new are not known")
		w.pass(time.Hour)
		assert.False(t, w.waits("a"))
		assert.Equal(t, targetStates{"b": provider.Registered}, w.balancer.States("api"))
	})
}

// The metrics of an entry count an instance as registered when it is registered with all
// target groups of the entry, and do not count targets of another entry.
func TestMetricsOfEntriesThatShareATargetGroup(t *testing.T) {
	run(t, func(w *world) {
		w.setEntries(entries{"x": {"web"}, "y": {"web", "api"}}, "x")
		w.set("a", reporting)
		w.pass(time.Hour)
		count := func(entry, state string) string {
			for _, series := range metricstest.SeriesOf(t, w.syncer) {
				if value, found := strings.CutPrefix(series, fmt.Sprintf("nstance_server_load_balancer_targets{load_balancer=%q,state=%q} ", entry, state)); found {
					return value
				}
			}
			return "none"
		}
		assert.Equal(t, "1", count("x", "registered"))
		assert.Equal(t, "0", count("y", "registering"))
		w.want("x", "y")
		w.pass(time.Hour)
		assert.Equal(t, "1", count("x", "registered"))
		assert.Equal(t, "1", count("y", "registered"))
		w.balancer.Called = func(operation, endpoint string, _ []string) error {
			if operation == "register" && endpoint == "api" {
				return providertest.ErrUnavailable
			}
			return nil
		}
		w.balancer.Remove("api", "a")
		w.pass(time.Hour)
		assert.Equal(t, "1", count("x", "registered"))
		assert.Equal(t, "1", count("y", "registering"))
		w.balancer.Called = nil
		w.pass(time.Hour)
		assert.Equal(t, "1", count("y", "registered"))
		w.setEntries(entries{"x": {"web"}})
		w.want()
		w.pass(10 * time.Second)
		assert.Equal(t, "1", count("x", "deregistering"))
		assert.Equal(t, "1", count("y (before)", "deregistering"))
		w.pass(time.Hour)
		assert.Equal(t, "none", count("y (before)", "deregistering"))
	})
}

// countCalls counts the calls that change targets from now on, by operation, endpoint and
// instance.
func (w *world) countCalls() map[string]int {
	calls := map[string]int{}
	// A round locks the mutex before it calls.
	w.syncer.mu.Lock()
	defer w.syncer.mu.Unlock()
	w.balancer.Called = func(operation, endpoint string, ids []string) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, id := range ids {
			calls[strings.Join([]string{operation, endpoint, id}, " ")]++
		}
		return nil
	}
	return calls
}

// want sets the load balancers of the group.
func (w *world) want(keys ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted = keys
}

// A change of the list of a group changes the targets of the load balancers that it adds or
// removes, and makes no calls for others: neither at once, nor later, nor in the next term.
func TestAChangedListOfAGroup(t *testing.T) {
	for _, tc := range []struct {
		name          string
		before, after []string
		calls         map[string]int
	}{
		{"one is added", []string{"web"}, []string{"web", "api"}, map[string]int{"register api a": 1, "register api b": 1}},
		{"one is added before", []string{"web"}, []string{"api", "web"}, map[string]int{"register api a": 1, "register api b": 1}},
		{"one is removed", []string{"web", "api"}, []string{"api"}, map[string]int{"deregister web a": 1, "deregister web b": 1}},
		{"the order is another", []string{"web", "api"}, []string{"api", "web"}, map[string]int{}},
		{"all are removed", []string{"web", "api"}, nil, map[string]int{
			"deregister web a": 1, "deregister web b": 1, "deregister api a": 1, "deregister api b": 1,
		}},
	} {
		for when, restart := range map[string]func(w *world, change func()){
			"without a restart":       func(_ *world, change func()) { change() },
			"before a restart":        func(w *world, change func()) { change(); w.lead() },
			"while no server leads":   func(w *world, change func()) { w.stop(); change(); w.lead() },
			"after the first calls":   func(w *world, change func()) { change(); w.pass(time.Second); w.lead() },
			"long before a new term":  func(w *world, change func()) { change(); w.pass(time.Hour); w.lead() },
			"long after a new leader": func(w *world, change func()) { w.lead(); w.pass(time.Hour); change() },
		} {
			t.Run(tc.name+" "+when, func(t *testing.T) {
				run(t, func(w *world) {
					w.want(tc.before...)
					w.set("a", reporting)
					w.set("b", reporting)
					w.pass(time.Hour)
					calls := w.countCalls()
					restart(w, func() { w.want(tc.after...) })
					for range 10 {
						w.pass(time.Minute)
					}
					assert.Equal(t, tc.calls, calls)
				})
			})
		}
	}
}

// TestAChangedListWhileAnInstanceDrains: the instance is deregistered from the load balancers
// of both lists, and is not terminated before both delays are over.
func TestAChangedListWhileAnInstanceDrains(t *testing.T) {
	for name, lists := range map[string][2][]string{
		"one is added":   {{"web"}, {"web", "api"}},
		"one is removed": {{"web", "api"}, {"api"}},
		"all":            {{"web", "api"}, nil},
	} {
		for when, restart := range map[string]bool{"": false, "and a new leader": true} {
			t.Run(strings.TrimSpace(name+" "+when), func(t *testing.T) {
				run(t, func(w *world) {
					w.want(lists[0]...)
					w.set("a", reporting)
					w.set("b", reporting)
					w.pass(time.Hour)
					calls := w.countCalls()
					w.set("a", draining)
					w.want(lists[1]...)
					assert.True(t, w.waits("a"), "before the deregistration has begun")
					w.pass(time.Second)
					for _, key := range lists[0] {
						assert.Equal(t, provider.Draining, w.balancer.States(key)["a"], key)
					}
					if restart {
						w.lead()
						w.pass(w.balancer.Delay - 4*time.Second)
					} else {
						w.pass(w.balancer.Delay - 2*time.Second)
					}
					assert.True(t, w.waits("a"), "before the delay is over")
					w.pass(10 * time.Second)
					assert.False(t, w.waits("a"), "after the delay")
					for _, key := range lists[0] {
						assert.Equal(t, 1, calls["deregister "+key+" a"], "deregistrations from %s", key)
					}
					for call := range calls {
						assert.False(t, strings.HasPrefix(call, "register") && strings.HasSuffix(call, " a"), call)
					}
					w.set("a", func(i *instance.Instance) { i.DeletedAt = time.Now() })
					w.pass(time.Hour)
					want := targetStates{}
					if len(lists[1]) > 0 {
						want["b"] = provider.Registered
					}
					assert.Equal(t, want, w.balancer.States("api"))
				})
			})
		}
	}
}

// If a list changes to and fro while calls are made, the targets follow the last list, with
// one call for each change.
func TestAListThatChangesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set("a", reporting)
		w.lead()
		w.pass(time.Hour)
		calls := w.countCalls()
		for range 5 {
			w.want("web", "api")
			w.pass(time.Second)
			w.want("web")
			w.pass(time.Second)
		}
		w.pass(time.Hour)
		assert.Equal(t, map[string]int{"register api a": 5, "deregister api a": 5}, calls)
		w.expect(targetStates{"a": provider.Registered})
		assert.Empty(t, w.balancer.States("api"))
		w.stop()
	})
}

// What an instance had of its own is lost with its record, so that it stays a target of the
// load balancers that its group does not have any more.
func TestAnAdoptedInstanceStaysATarget(t *testing.T) {
	run(t, func(w *world) {
		w.set("a", reporting)
		w.set("b", reporting)
		w.set("b", func(i *instance.Instance) { i.Adopted = true })
		w.pass(time.Hour)
		w.expect(targetStates{"a": provider.Registered, "b": provider.Registered})
		calls := w.countCalls()
		w.want()
		w.pass(time.Hour)
		assert.Equal(t, map[string]int{"deregister web a": 1}, calls)
		w.expect(targetStates{"b": provider.Registered})
		w.set("b", draining)
		w.pass(time.Hour)
		w.expect(targetStates{})
	})
}
