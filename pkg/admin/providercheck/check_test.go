// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
)

// TestAllSteps expects one instance of the smallest type, with what a server would give it
// apart from the userdata.
func TestAllSteps(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		require.Equal(t, 0, w.check(t.Context()), w.output.String())
		assert.Equal(t, slices.Concat(steps[:1], steps[2:]), w.begun())
		assert.Contains(t, w.output.String(), "All steps succeeded. Nothing is left.")
		require.Len(t, w.cloud.Made(), 2, "instances that were ever created, with that of the server")
		w.expectOnlyServer()

		request := w.requests[0]
		assert.Equal(t, "less", request.Type.Name)
		assert.Equal(t, "subnet", request.Subnet)
		assert.Equal(t, map[string]any{"name": request.ID + " b"}, request.Args)
		assert.Equal(t, "#!/bin/sh\n# Created by nstance-admin provider check: "+request.ID+", without a nonce.\n"+
			"echo '"+provider.BootMark(request.ID)+"' >/dev/console\nexit 0\n", string(request.Userdata))
	})
}

// TestFormerInstances removes what two killed checks have left, and no more.
func TestFormerInstances(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		first, second := w.leave(), w.leave()
		require.Equal(t, 0, w.check(t.Context()), w.output.String())
		assert.Equal(t, steps, w.begun())
		assert.Contains(t, w.output.String(), first+", "+second)
		w.expectOnlyServer()
	})
}

// TestLateFormerInstances: an instance that a killed check was creating is listed after the first
// list of the next check, which removes it.
func TestLateFormerInstances(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var late string
		w.at["list it as another process does"] = func() { late = w.leave() }
		require.Equal(t, 0, w.check(t.Context()), w.output.String())
		assert.Contains(t, w.output.String(), ": removed "+late+" of an earlier check\n")
		w.expectOnlyServer()
	})
}

func TestFailingSteps(t *testing.T) {
	const always = 1 << 30
	for _, tc := range []struct {
		step   string
		prior  func(*world)
		during func(*world)
		// want is in the output.
		want string
	}{
		{step: steps[0], prior: func(w *world) { w.faults.Fail(cloudtest.List, always) }, want: "could not be listed"},
		{step: steps[1], prior: func(w *world) { w.leave() }, during: func(w *world) { w.faults.Fail(cloudtest.Terminate, 40) }, want: "not available"},
		{step: steps[2], prior: func(w *world) { w.cloud.Room["subnet"] = 0 }, want: "subnet subnet has no room"},
		{step: steps[3], prior: func(w *world) { w.cloud.SetFull("less", true) }, want: "insufficient capacity for less"},
		{step: steps[3], prior: func(w *world) { w.faults.Fail(cloudtest.Launch, always) }, want: "not available"},
		{step: steps[4], prior: func(w *world) { w.cloud.BootTime = 24 * time.Hour }, want: "it took longer than 10m0s"},
		{step: steps[4], during: func(w *world) { w.cloud.Become(w.checked(), instance.Failed, "no disk") }, want: "it will not run: no disk"},
		{step: steps[5], during: func(w *world) { w.cloud.Vanish(w.checked()) }, want: "it is not listed"},
		{step: steps[6], during: func(w *world) { w.faults.Fail(cloudtest.Find, 1) }, want: "not available"},
		{step: steps[6], during: func(w *world) { w.cloud.Vanish(w.checked()) }, want: "it is not found"},
		{step: steps[7], during: func(w *world) { w.faults.Fail(cloudtest.Terminate, 40) }, want: "not available"},
		{step: steps[8], during: func(w *world) { w.leave() }, want: "is listed"},
		{step: steps[8], during: func(w *world) { w.faults.Fail(cloudtest.Find, 1) }, want: "not available"},
	} {
		t.Run(tc.step+": "+tc.want, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				if tc.prior != nil {
					tc.prior(w)
				}
				if tc.during != nil {
					w.at[tc.step] = func() { tc.during(w) }
				}
				assert.Equal(t, 1, w.check(t.Context()), "exit code")
				begun := w.begun()
				if at := slices.Index(begun, tc.step); at < 0 || at+1 < len(begun) && begun[at+1] != cleanup {
					t.Errorf("the steps are %q, want that %q failed", begun, tc.step)
				}
				assert.Contains(t, w.output.String(), tc.step+" ... FAILED")
				assert.Contains(t, w.output.String(), tc.want)
				w.expectOnlyServer()
			})
		})
	}
}

// checked returns the instance of the check.
func (w *world) checked() string {
	w.t.Helper()
	require.NotEmpty(w.t, w.requests)
	return w.requests[len(w.requests)-1].ID
}

// TestCleanUpFails expects the ids of what exists, and that the next check removes it.
func TestCleanUpFails(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.at["terminate it"] = func() { w.faults.Fail(cloudtest.Terminate, 1<<30) }
		assert.Equal(t, 1, w.check(t.Context()), "exit code")
		assert.Contains(t, w.output.String(), cleanup+" ... FAILED after 20m")
		assert.Contains(t, w.output.String(), "COULD NOT REMOVE")
		assert.Contains(t, w.output.String(), `instance `+w.checked()+`, provider id "i-000002"`)
		assert.Contains(t, w.output.String(), "They belong to shard a of cluster check--prod.")
		w.faults.Fail(cloudtest.Terminate, 0)
		require.Equal(t, 0, w.check(t.Context()), w.output.String())
		w.expectOnlyServer()
	})
}

// TestInterruption cancels the context in each step, at its begin and later, as SIGTERM
// does.
func TestInterruption(t *testing.T) {
	for _, step := range steps {
		for _, delay := range []time.Duration{0, time.Nanosecond, 3 * time.Second} {
			for _, lost := range []int{0, 1} {
				t.Run(step+" "+delay.String(), func(t *testing.T) {
					inBubble(t, func(t *testing.T, w *world) {
						w.leave()
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						w.at[step] = func() {
							w.faults.LoseResponses(cloudtest.Launch, lost)
							if delay == 0 {
								cancel()
								return
							}
							time.AfterFunc(delay, cancel)
						}
						code := w.check(ctx)
						if finished := ctx.Err() == nil; finished != (code == 0) {
							t.Errorf("the exit code is %d, and it is %t that the check was not interrupted:\n%s", code, finished, w.output.String())
						}
						if step != steps[0] {
							w.expectOnlyServer()
						}
					})
				})
			}
		}
	}
}

// TestInterruptionAfterTheTermination cancels the context while the instance is terminated and
// while that is confirmed. The check is over before an empty list would prove anything: its
// session has seen that the instance is gone.
func TestInterruptionAfterTheTermination(t *testing.T) {
	for _, step := range steps[len(steps)-2:] {
		for _, delay := range []time.Duration{0, time.Nanosecond, 3 * time.Second, 12 * time.Second} {
			t.Run(step+" "+delay.String(), func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					w.cloud.Limits.EmptyDelay = time.Hour
					w.questions = []question{{"client tokens", "", "", launchAnother}}
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					w.at[step] = func() {
						if delay == 0 {
							cancel()
							return
						}
						time.AfterFunc(delay, cancel)
					}
					code := w.check(ctx)
					assert.Equal(t, ctx.Err() == nil, code == 0, w.output.String())
					assert.NotContains(t, w.output.String(), "COULD NOT REMOVE")
					w.expectOnlyServer()
				})
			})
		}
	}
}

// TestKilled stops the process in each step. The next check removes what it has left.
func TestKilled(t *testing.T) {
	kill := map[string]func(*world){
		"at its begin":   func(w *world) { w.dead.Store(true) },
		"a moment later": func(w *world) { w.timer = time.AfterFunc(3*time.Second, func() { w.dead.Store(true) }) },
		"in its launch":  func(w *world) { w.dieInLaunch = true },
	}
	for _, step := range steps {
		for name, kill := range kill {
			t.Run(step+", "+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					w.leave()
					w.at[step] = func() { kill(w) }
					code := w.check(t.Context())
					if dead := w.dead.Load(); dead && code != 1 && step != steps[len(steps)-1] {
						t.Errorf("the exit code is %d", code)
					}
					if w.timer != nil {
						w.timer.Stop() // the check was faster
					}
					w.dead.Store(false)
					w.dieInLaunch = false
					require.Equal(t, 0, w.check(t.Context()), w.output.String())
					w.expectOnlyServer()
				})
			})
		}
	}
}

// TestProviderWithOneShard refuses to work with a provider that lists the instances of a
// server.
func TestProviderWithOneShard(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		time.Sleep(time.Minute)
		w.ignoreShard = true
		assert.Equal(t, 1, w.check(t.Context()), "exit code")
		assert.Contains(t, w.output.String(), "the provider lists instances of group default/workers")
		assert.Equal(t, steps[:1], w.begun())
		assert.Len(t, w.cloud.Made(), 1)
		assert.Empty(t, w.cloud.Terminated())
	})
}
