// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
)

// Everything loses its power at once: the control plane with the operator, the servers of all shards
// and all machines. In whatever order they come back, no instance is replaced. The test is not
// parallel: other tests would lose their machines.
func TestPowerLoss(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	const name = "power"
	env.CreatePoolForTest(t, name, 0)
	env.Scale(t, name, int32(len(shardIDs)))
	env.UntilRunning(t, name, int32(len(shardIDs)))
	before := ids(t, name)
	require.Len(t, before, len(shardIDs))
	const plane, servers, machines = "control plane", "servers", "machines"
	for _, order := range [][]string{
		{plane, servers, machines},
		{plane, machines, servers},
		{servers, plane, machines},
		{servers, machines, plane},
		{machines, plane, servers},
		{machines, servers, plane},
	} {
		t.Run(strings.Join(order, ", "), func(t *testing.T) {
			t.Cleanup(func() { startAll(t) })
			losePower(t)
			lost := time.Now()
			for _, part := range order {
				switch part {
				case plane:
					startControlPlane(t)
				case servers:
					startServers(t)
				default:
					startMachines(t)
				}
			}
			untilBack(t, name, before, lost)
			assert.Equal(t, before, ids(t, name), "the containers by instance")
			assert.Empty(t, containers.removed(t, name))
		})
	}
}

// untilBack waits until the servers report all instances, and the kubelets their Nodes, since a time.
// The API server has kept what both have reported before.
func untilBack(t *testing.T, name string, instances map[string]string, since time.Time) {
	t.Helper()
	testcluster.Eventually(t, 3*time.Minute, "everything is back", func(ctx context.Context) error {
		for _, shard := range shardIDs {
			group, err := env.Group(ctx, shard, name)
			if err != nil {
				return err
			}
			if running := group.GetActualSize(); running != 1 {
				return fmt.Errorf("shard %s runs %d instances", shard, running)
			}
		}
		for instance := range instances {
			lease, err := env.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, instance, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if renewed := lease.Spec.RenewTime; renewed == nil || renewed.Time.Before(since) {
				return fmt.Errorf("the kubelet of %s has reported at %v", instance, renewed)
			}
		}
		pool, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		return testcluster.Settled(pool)
	})
}

// losePower kills everything.
func losePower(t *testing.T) {
	t.Helper()
	nodes, err := docker.Nodes(t.Context(), shardIDs...)
	require.NoError(t, err)
	for _, node := range nodes {
		_, err := docker.Client.ContainerKill(t.Context(), node.ID, client.ContainerKillOptions{})
		require.NoError(t, err)
	}
	for _, component := range slices.Backward(env.Components()) {
		require.NoError(t, component.Kill(t.Context()))
	}
}

// isServer reports whether a component is the server of a shard.
func isServer(component *controlplane.Component) bool {
	return slices.ContainsFunc(shardIDs, func(id string) bool { return component == env.ShardServer(id) })
}

// start starts components that do not run, in the order in which they were started first.
func start(t *testing.T, which func(*controlplane.Component) bool) {
	t.Helper()
	for _, component := range env.Components() {
		if _, running := component.PID(); !running && which(component) {
			require.NoError(t, component.Start(context.WithoutCancel(t.Context())), component.Name)
		}
	}
}

func startServers(t *testing.T) {
	t.Helper()
	start(t, isServer)
}

func startControlPlane(t *testing.T) {
	t.Helper()
	start(t, func(c *controlplane.Component) bool { return !isServer(c) && c != env.OperatorProcess() })
	if _, running := env.OperatorProcess().PID(); running {
		return
	}
	env.ReleaseLease(t)
	require.NoError(t, env.OperatorProcess().Start(context.WithoutCancel(t.Context())))
}

// startMachines does what Docker does when its machine is started.
func startMachines(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	nodes, err := docker.Nodes(ctx, shardIDs...)
	require.NoError(t, err)
	for _, node := range nodes {
		_, err := docker.Client.ContainerStart(ctx, node.ID, client.ContainerStartOptions{})
		require.NoError(t, err, fmt.Sprint(node.Names))
	}
}

// startAll leaves everything running after a test that has failed.
func startAll(t *testing.T) {
	t.Helper()
	startServers(t)
	startControlPlane(t)
	startMachines(t)
}
