// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

const (
	registerStep   = "register it with the load balancers"
	deregisterStep = "deregister it"
)

// inBalancedBubble runs a test with two load balancers, which have the instance of the
// server.
func inBalancedBubble(t *testing.T, test func(*testing.T, *world)) {
	inBubble(t, func(t *testing.T, w *world) {
		w.config = strings.Replace(shardConfig, `"templates":`, `"load_balancers": {"web": {"endpoint": "web"}, "api": {"endpoint": "api"}}, "templates":`, 1)
		w.balancers.Put("web", provider.Target{ID: w.server})
		test(t, w)
		assert.Equal(t, map[string]provider.TargetState{w.server: provider.Registered}, w.balancers.States("web"), "targets of web after:\n%s", w.output.String())
		assert.Empty(t, w.balancers.States("api"), "targets of api after:\n%s", w.output.String())
	})
}

// calls collects the calls that change targets. It makes a call fail if fail returns true.
func (w *world) calls(fail func(operation, endpoint string) bool) *[]string {
	var calls []string
	w.balancers.Called = func(operation, endpoint string, _ []string) error {
		if operation != "list" {
			calls = append(calls, operation+" "+endpoint)
		}
		if fail != nil && fail(operation, endpoint) {
			return providertest.ErrUnavailable
		}
		return nil
	}
	return &calls
}

// TestLoadBalancers: the instance is registered only with the load balancers of the flag.
func TestLoadBalancers(t *testing.T) {
	for _, tc := range []struct {
		args, calls []string
	}{
		{nil, nil},
		{[]string{"--load-balancers", "web"}, []string{"register web", "deregister web"}},
		{[]string{"--load-balancers", "web,api"}, []string{"register web", "register api", "deregister web", "deregister api"}},
	} {
		t.Run(fmt.Sprint(tc.args), func(t *testing.T) {
			inBalancedBubble(t, func(t *testing.T, w *world) {
				calls := w.calls(nil)
				w.at["terminate it"] = func() { assert.Equal(t, tc.calls, *calls, "before the termination") }
				require.Equal(t, 0, w.check(t.Context(), tc.args...), w.output.String())
				assert.Equal(t, tc.calls, *calls)
				assert.Equal(t, tc.args != nil, slices.Contains(w.begun(), registerStep))
				w.expectOnlyServer()
			})
		})
	}
}

// TestLateTargets: a step lasts until the lists agree with it.
func TestLateTargets(t *testing.T) {
	inBalancedBubble(t, func(t *testing.T, w *world) {
		var target provider.Target
		lists, changed := map[string]int{}, ""
		w.balancers.Called = func(operation, endpoint string, ids []string) error {
			if operation != "list" {
				target, changed = provider.Target{ID: ids[0]}, operation
				return nil
			}
			// The first two lists are as before the change.
			lists[changed]++
			if late := lists[changed] <= 2; late == (changed == "register") {
				w.balancers.Remove(endpoint, target.ID)
			} else {
				w.balancers.Put(endpoint, target)
			}
			return nil
		}
		require.Equal(t, 0, w.check(t.Context(), "--load-balancers", "web"), w.output.String())
		assert.Equal(t, map[string]int{"register": 3, "deregister": 3}, lists)
	})
}

// TestLoadBalancersThatFail: the instance is no target and does not exist afterwards.
func TestLoadBalancersThatFail(t *testing.T) {
	failures := 0
	for name, tc := range map[string]struct {
		step string
		fail func(operation, endpoint string) bool
		want string
	}{
		"a registration":          {registerStep, func(operation, endpoint string) bool { return operation+endpoint == "registerapi" }, "load balancer api: "},
		"a list":                  {registerStep, func(operation, _ string) bool { failures++; return operation == "list" && failures < 3 }, "load balancer web: "},
		"one deregistration":      {deregisterStep, func(operation, _ string) bool { failures++; return operation == "deregister" && failures < 8 }, "load balancer web: "},
		"many of deregistrations": {deregisterStep, func(operation, _ string) bool { failures++; return operation == "deregister" && failures < 40 }, "load balancer web: "},
	} {
		t.Run(name, func(t *testing.T) {
			inBalancedBubble(t, func(t *testing.T, w *world) {
				failures = 0
				w.calls(tc.fail)
				assert.Equal(t, 1, w.check(t.Context(), "--load-balancers", "web,api"), w.output.String())
				assert.Contains(t, w.output.String(), tc.step+" ... FAILED")
				assert.Contains(t, w.output.String(), tc.want)
				assert.Contains(t, w.begun(), cleanup)
				w.expectOnlyServer()
			})
		})
	}
}

// TestAnInterruptionDeregisters: also what was registered without a response.
func TestAnInterruptionDeregisters(t *testing.T) {
	for _, step := range []string{registerStep, deregisterStep, "terminate it"} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lost %t", step, lost), func(t *testing.T) {
				inBalancedBubble(t, func(t *testing.T, w *world) {
					ctx, interrupt := context.WithCancel(t.Context())
					w.balancers.Called = func(operation, _ string, _ []string) error {
						if step == registerStep && operation == "register" {
							interrupt()
						}
						return nil
					}
					w.at[step] = func() {
						if lost {
							w.balancers.LoseResponses(1)
						}
						if step != registerStep {
							interrupt()
						}
					}
					assert.Equal(t, 1, w.check(ctx, "--load-balancers", "web,api"), w.output.String())
					w.expectOnlyServer()
				})
			})
		}
	}
}

// TestFormerTargets: what a killed check has left is deregistered before it is terminated.
func TestFormerTargets(t *testing.T) {
	inBalancedBubble(t, func(t *testing.T, w *world) {
		former := w.leave()
		w.balancers.Put("api", provider.Target{ID: former})
		w.at["remove what an earlier check has left"] = func() {
			assert.Contains(t, w.balancers.States("api"), former)
		}
		w.at["read the room of the subnet"] = func() { assert.Empty(t, w.balancers.States("api")) }
		require.Equal(t, 0, w.check(t.Context(), "--load-balancers", "web,api"), w.output.String())
		w.expectOnlyServer()
	})
}

// TestLoadBalancersStayUnavailable: the instance is terminated, and the output names it.
func TestLoadBalancersStayUnavailable(t *testing.T) {
	inBalancedBubble(t, func(t *testing.T, w *world) {
		w.calls(func(operation, _ string) bool { return operation == "deregister" })
		assert.Equal(t, 1, w.check(t.Context(), "--load-balancers", "web"), "exit code")
		assert.Contains(t, w.output.String(), "as a target of load balancers")
		w.expectOnlyServer()
		w.calls(nil)
		for id := range w.balancers.States("web") {
			if id != w.server {
				assert.Contains(t, w.output.String(), "instance "+id+", provider id")
				w.balancers.Remove("web", id)
			}
		}
	})
}

func TestUnknownLoadBalancer(t *testing.T) {
	inBalancedBubble(t, func(t *testing.T, w *world) {
		assert.Equal(t, 2, w.check(t.Context(), "--load-balancers", "web,none"), "exit code")
		assert.Contains(t, w.output.String(), `--load-balancers: "none" is unknown, known are`)
		assert.Empty(t, w.requests)
	})
}

var _ provider.LoadBalancers = balanced{}
