// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"testing"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/testcluster"
)

// A node whose processes are suspended has a silent agent, and Docker reports it as paused.
func TestPausedNodeIsReplaced(t *testing.T) {
	skipUnlessFull(t)
	t.Parallel()
	expectReplaced(t, "paused", func(id string) error {
		_, err := docker.Client.ContainerPause(t.Context(), id, client.ContainerPauseOptions{})
		return err
	})
}

func TestKilledNodeIsReplaced(t *testing.T) {
	skipUnlessFull(t)
	t.Parallel()
	expectReplaced(t, "killed", func(id string) error {
		_, err := docker.Client.ContainerKill(t.Context(), id, client.ContainerKillOptions{})
		return err
	})
}

// A node without a kubelet exits.
func TestNodeWithoutKubeletIsReplaced(t *testing.T) {
	skipUnlessFull(t)
	t.Parallel()
	expectReplaced(t, "kubelet", func(id string) error {
		return runInContainer(t.Context(), id, "pkill", "-KILL", "-x", "kubelet")
	})
}

// expectReplaced breaks one of the three nodes of a pool. It is replaced, and the other two
// stay.
func expectReplaced(t *testing.T, name string, breakNode func(container string) error) {
	t.Helper()
	env.CreatePoolForTest(t, name, 0)
	env.Scale(t, name, 3)
	env.UntilRunning(t, name, 3)
	before := ids(t, name)
	require.Len(t, before, 3)
	broken := containers.started(t, name)[1]

	require.NoError(t, breakNode(before[broken]))
	containers.untilRemoved(t, name, 1)
	containers.untilStarted(t, name, 4)
	testcluster.Eventually(t, time.Minute, "the Node of the broken machine is deleted", func(ctx context.Context) error {
		_, err := env.Kube.CoreV1().Nodes().Get(ctx, broken, metav1.GetOptions{})
		return testcluster.NotFound("Node "+broken, err)
	})
	env.UntilRunning(t, name, 3)
	containers.expectCounts(t, name, 4, 1)
	assert.Equal(t, []string{broken}, containers.removed(t, name))
	assert.Equal(t, []string{broken}, containers.instances(t, name, events.ActionDie))
	after := ids(t, name)
	assert.Len(t, after, 3)
	delete(before, broken)
	for instance, id := range before {
		assert.Equal(t, id, after[instance], "the container of instance %s", instance)
	}
}
