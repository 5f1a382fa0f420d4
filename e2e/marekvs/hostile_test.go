// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package marekvs

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/marekvsoperator"
	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/testing/tier"
)

// hostileRatio is how much more memory the operator may take with the worst pages than with usual pages.
const hostileRatio = 1.5

// writeHostile writes a page of 15 MiB, of which users and clients may choose any line: names of commands as long
// as a line may be and longer, more names than are counted, and lines that are no metrics.
func writeHostile(w io.Writer) {
	long := strings.Repeat("x", 8000)
	for n := range 800 {
		_, _ = fmt.Fprintf(w, "marekvs_commands_total{cmd=\"%d-%s\"} 1\n", n, long)
	}
	_, _ = fmt.Fprintf(w, "marekvs_commands_total{cmd=%q} 1\n", strings.Repeat(long, 500))
	_, _ = fmt.Fprintf(w, "marekvs_commands_total{%sb=\"\"} 1\n", strings.Repeat("a=\"\",", 1300))
	for n := range 12_000 {
		_, _ = fmt.Fprintf(w, "marekvs_commands_total{cmd=\"wrong-%d\"} 1\nmarekvs_command_duration_seconds_bucket{cmd=\"wrong-%d\",le=\"1\"} 1\n", n, n)
	}
	_, _ = io.WriteString(w, strings.Repeat("{{{\n", 300_000))
}

// The pages of every node are as large as pages may be, and made by someone who wants to end the operator. Its
// memory is at most 1.5 times the memory with usual pages.
func TestHostilePages(t *testing.T) {
	if !tier.Full() {
		t.Skip("make test-full runs this test")
	}
	const clusters, nodes, times = 8, 5, 10
	var pods []string
	for n := range clusters {
		name := fmt.Sprintf("hostile-%d", n)
		create(t, name, v1alpha1.MarekvsClusterSpec{Nodes: nodes, ReplicationFactor: 2})
		for ordinal := range nodes {
			pods = append(pods, fmt.Sprintf("%s-%d", name, ordinal))
		}
	}
	for n := range clusters {
		until(t, fmt.Sprintf("hostile-%d", n), "all nodes", healthy(nodes))
	}
	for _, operator := range env.operators {
		require.NoError(t, operator.Stop(t.Context()))
	}
	t.Cleanup(func() {
		for _, operator := range env.operators {
			assert.NoError(t, operator.Start(context.WithoutCancel(t.Context())))
		}
	})
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	operator, err := marekvsoperator.Start(t.Context(), env.controlPlane, marekvsoperator.Options{
		Name: "operator-hostile", Program: filepath.Join(root, "e2e", ".cache", "marekvs-operator"), Dir: t.TempDir(), MetricsPort: env.store.Port,
	})
	require.NoError(t, err)
	defer func() { assert.NoError(t, operator.Stop(context.WithoutCancel(t.Context()))) }()
	readAll := func() {
		t.Helper()
		before := map[string]int{}
		for _, pod := range pods {
			before[pod] = env.store.Scrapes(pod)
		}
		for _, pod := range pods {
			eventually(t, pod+" is read", func(context.Context) bool { return env.store.Scrapes(pod) >= before[pod]+times })
		}
	}
	readAll()
	_, usual, err := operator.Memory()
	require.NoError(t, err)
	env.store.SetPage(writeHostile)
	defer env.store.SetPage(nil)
	readAll()
	_, hostile, err := operator.Memory()
	require.NoError(t, err)
	t.Logf("at most %.1f MiB with usual pages, %.1f MiB with hostile pages: %.2f times", usual, hostile, hostile/usual)
	assert.Less(t, hostile, hostileRatio*usual)
	for n := range clusters {
		until(t, fmt.Sprintf("hostile-%d", n), "all nodes", func(c *v1alpha1.MarekvsCluster) bool { return *c.Status.ReadyNodes == nodes })
	}
}
