// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package loadbalancers

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// countCalls counts the calls that change targets from now on, by operation, endpoint and
// instance.
func (w *world) countCalls() map[string]int {
	calls := map[string]int{}
	// A round locks it before it calls.
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
// removes, and calls nothing for the others: neither at once, nor later, nor in the next term.
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

// TestAChangedListWhileAnInstanceDrains: the instance is deregistered from what the list had
// and from what it has, and is not terminated before both delays are over.
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

// A list that changes to and fro while calls are made ends with what it has at last, and
// with one call for each change.
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
