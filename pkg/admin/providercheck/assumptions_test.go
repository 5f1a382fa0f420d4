// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
)

// numbered matches the first line of a subject in a report.
var numbered = regexp.MustCompile(`(?m)^ ?(\d+)\. (.+)$`)

// launchAnother launches one more instance.
func launchAnother(ctx context.Context, api cloud.API, t *provider.Trial) (provider.Answer, error) {
	spec, err := t.New(ctx)
	if err != nil {
		return provider.Answer{}, err
	}
	vm, err := api.Launch(ctx, cloud.Request{Token: spec.ID, Spec: spec})
	if err != nil {
		return provider.Answer{}, err
	}
	t.Created(spec.ID, vm.ProviderID)
	return provider.Answered(true, "%s", vm.ProviderID)
}

// leaveThing creates something that is no instance.
func (w *world) leaveThing(context.Context, cloud.API, *provider.Trial) (provider.Answer, error) {
	w.things = append(w.things, "a thing")
	return provider.Answered(true, "created")
}

// TestReport prints each of the 25 subjects with what is relied on, its source and the answer, or
// why there is no answer.
func TestReport(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.questions = []question{
			{"client tokens", "the first", "https://vendor.test/tokens", launchAnother},
			{"client tokens", "the second", "", func(context.Context, cloud.API, *provider.Trial) (provider.Answer, error) {
				return provider.Answered(false, "something else")
			}},
			{"targets", "", "", func(context.Context, cloud.API, *provider.Trial) (provider.Answer, error) {
				return provider.Answer{}, provider.NotAsked("--load-balancers is not set")
			}},
			{"tags", "", "", func(context.Context, cloud.API, *provider.Trial) (provider.Answer, error) {
				return provider.Answer{}, errors.New("not available")
			}},
			{"spot instances", "", "", w.leaveThing},
		}
		assert.Equal(t, 1, w.check(t.Context()), "exit code of a check with an answer that differs")
		output := w.output.String()
		var numbers []string
		for _, match := range numbered.FindAllStringSubmatch(output, -1) {
			numbers = append(numbers, match[1])
		}
		assert.Len(t, numbers, 25)
		assert.Equal(t, "25", numbers[len(numbers)-1])
		for _, want := range []string{
			"ask about client tokens, the first ... as expected, ",
			"    question:   the first\n    relied on:  what is expected\n    source:     https://vendor.test/tokens\n    answer:     i-000003\n    result:     as expected\n",
			"    question:   the second\n    relied on:  what is expected\n    source:     not documented\n    answer:     something else\n    result:     DIFFERS\n",
			"24. aws: targets\n    relied on:  what is expected\n    source:     not documented\n    result:     not checked: --load-balancers is not set\n",
			"20. proxmox: tags\n    relied on:  what is expected\n    source:     not documented\n    result:     no answer: not available\n",
			" 1. gcs: reads of objects\n    result:     not checked: --storage-bucket is not set\n",
			" 8. google: request ids\n    result:     not checked: the provider is fake\n",
			"19. google-secret-manager: versions of secrets\n    result:     not checked: cluster.secrets.provider is object-storage\n",
			"25. every cloud: first boot\n    result:     not checked: provider fake has no service of others\n",
			"1 answers differ from what the servers rely on",
		} {
			assert.Contains(t, output, want)
		}
		assert.Regexp(t, "remove what the questions have created ... ok, .+: 1 instances; 1 other objects\n", output)
		assert.Empty(t, w.things)
		w.expectOnlyServer()

		w.questions = w.questions[:1]
		require.Equal(t, 0, w.check(t.Context()), w.output.String())
		require.Equal(t, 0, w.check(t.Context(), "--skip-assumptions"), w.output.String())
		assert.NotContains(t, w.output.String(), "client tokens")
	})
}

// TestKilledWhileAsking stops the process at each question, and while a question launches an
// instance. The next check removes what it has left. An interrupted check removes it itself.
func TestKilledWhileAsking(t *testing.T) {
	ask := []string{
		"remove what earlier questions have left", "ask about spot instances", "ask about client tokens", "ask about tags", "remove what the questions have created",
	}
	for _, step := range ask {
		for name, stop := range map[string]func(*world, context.CancelFunc){
			"killed at its begin": func(w *world, _ context.CancelFunc) { w.dead.Store(true) },
			"killed later": func(w *world, _ context.CancelFunc) {
				w.timer = time.AfterFunc(3*time.Second, func() { w.dead.Store(true) })
			},
			"killed in its launch":     func(w *world, _ context.CancelFunc) { w.dieInLaunch = true },
			"interrupted at its begin": func(_ *world, cancel context.CancelFunc) { cancel() },
			"interrupted later":        func(_ *world, cancel context.CancelFunc) { time.AfterFunc(3*time.Second, cancel) },
			"a response is lost": func(w *world, cancel context.CancelFunc) {
				w.faults.LoseResponses(cloudtest.Launch, 1)
				time.AfterFunc(time.Nanosecond, cancel)
			},
		} {
			t.Run(step+", "+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					w.questions = []question{
						{"spot instances", "", "", w.leaveThing},
						{"client tokens", "", "", launchAnother},
						{"tags", "", "", func(ctx context.Context, _ cloud.API, _ *provider.Trial) (provider.Answer, error) {
							select {
							case <-ctx.Done():
								return provider.Answer{}, context.Cause(ctx)
							case <-time.After(5 * time.Second):
							}
							return provider.Answered(true, "later")
						}},
					}
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					w.at[step] = func() { stop(w, cancel) }
					w.check(ctx)
					if w.timer != nil {
						w.timer.Stop()
					}
					if ctx.Err() != nil {
						w.expectOnlyServer()
						assert.Empty(t, w.things)
					}
					w.dead.Store(false)
					w.dieInLaunch = false
					require.Equal(t, 0, w.check(t.Context()), w.output.String())
					assert.True(t, strings.Contains(w.output.String(), "Nothing is left."), w.output.String())
					w.expectOnlyServer()
					assert.Empty(t, w.things)
				})
			})
		}
	}
}
