// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package monitoring

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/metricstest"
)

// question is a row of the table in docs/operations.md#questions-on-call.
type question struct{ text, answer, panel string }

// readQuestions returns the rows of the table.
func readQuestions(t *testing.T) []question {
	t.Helper()
	var questions []question
	for line := range strings.Lines(metricstest.Section(t, filepath.Join("..", "..", "docs", "operations.md"), "Questions on call")) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "| ") || !strings.Contains(line, "`") {
			continue // no row, or the header
		}
		require.Len(t, cells, 3, "cells of the row %s", line)
		answer := strings.TrimSpace(cells[1])
		require.Regexp(t, "^`[^`]+`$", answer, "the answer is one command or query")
		questions = append(questions, question{strings.TrimSpace(cells[0]), strings.Trim(answer, "`"), strings.TrimSpace(cells[2])})
	}
	return questions
}

// The table of questions is true as it is written: in a situation that the test produces,
// each command or query names the object, the time, the writer or the figure, to a user
// with no other rights than the ClusterRole of the manifests.
func TestQuestionsOnCall(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	questions := readQuestions(t)
	var written []string
	for _, question := range questions {
		written = append(written, question.text)
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(expectations)), written, "questions with an expectation, and those of the table")
	panels := dashboardQueries(t)
	o := newOnCall(t)
	for _, question := range questions {
		t.Run(question.text, func(t *testing.T) {
			if question.panel != "–" {
				assert.Contains(t, panels, question.panel, "panels of the dashboard")
			}
			expectations[question.text](t, o, question.answer)
		})
	}
}

// onCall is a user who is on call, with kubectl, its plugin and Prometheus.
type onCall struct {
	prometheus prometheusAPI
	// path is PATH, and kubeconfig that of an account with the ClusterRole of readers.
	path, kubeconfig string
	// drained is the Node of the blocked drain, "" before there is one.
	drained string
}

func newOnCall(t *testing.T) *onCall {
	t.Helper()
	o := &onCall{prometheus: runPrometheus(t, shippedRules(t))}
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	builder := controlplane.Builder{Root: root, Progress: os.Stderr}
	binaries, err := builder.ControlPlane(t.Context())
	require.NoError(t, err)
	plugin, err := builder.Plugin(t.Context())
	require.NoError(t, err)
	dir := t.TempDir()
	script := "#!/bin/sh\nexec " + binaries.Kube + ` kubectl "$@"` + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o700)) //nolint:gosec // it is executed
	o.path = strings.Join([]string{dir, filepath.Dir(plugin), os.Getenv("PATH")}, string(filepath.ListSeparator))
	o.kubeconfig, err = env.KubeconfigWithToken("on-call", env.CreateAccount(t, "on-call", "nstance-reader"))
	require.NoError(t, err)

	// A rate has no value for what happened before the first scrape.
	testcluster.EventuallyEvery(t, time.Second, timeout, "the operator was scraped", func(ctx context.Context) error {
		scraped := o.query(ctx, t, `sum by (shard) (nstance_operator_instance_startup_duration_seconds_count)`)
		if len(scraped) != len(shards) {
			return fmt.Errorf("of shards %v", scraped)
		}
		return nil
	})
	env.CreatePoolForTest(t, observedPool, observedReplicas)
	env.UntilRunning(t, observedPool, observedReplicas)
	t.Cleanup(func() {
		if o.drained != "" {
			env.UnblockDrains(t, observedPool)
		}
	})
	return o
}

// run runs a command in a shell, with values for the names in it, and returns what it
// prints.
func (o *onCall) run(ctx context.Context, t *testing.T, command string, values ...string) string {
	t.Helper()
	command = strings.NewReplacer(values...).Replace(command)
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Env = append(os.Environ(), "PATH="+o.path, "KUBECONFIG="+o.kubeconfig)
	printed, err := cmd.CombinedOutput()
	t.Logf("$ %s\n%s", command, printed)
	require.NoError(t, err)
	return string(printed)
}

// query returns the values of a query by shard, "" for a value of all shards.
func (o *onCall) query(ctx context.Context, t *testing.T, expression string) map[string]float64 {
	t.Helper()
	results, err := o.prometheus.query(ctx, expression)
	require.NoError(t, err)
	values := map[string]float64{}
	for _, result := range results {
		value, err := result.number()
		require.NoError(t, err)
		values[result.Metric["shard"]] = value
	}
	t.Logf("%s = %v", expression, values)
	return values
}
