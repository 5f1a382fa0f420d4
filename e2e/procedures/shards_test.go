// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package procedures

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/storage"
)

// A lost shard is given up: the other shard runs the replicas and keeps its own instances, and
// only the objects of the lost shard are deleted.
func TestLostShard(t *testing.T) {
	for _, mode := range []v1beta1.MachineMode{v1beta1.MachineModeNever, v1beta1.MachineModeAlways} {
		t.Run(string(mode), func(t *testing.T) {
			if mode == v1beta1.MachineModeAlways {
				testcluster.SkipUnlessFull(t)
			}
			const bystander, replicas = "bystander", 6
			lost := "us-west-2x"
			if mode == v1beta1.MachineModeAlways {
				lost = "us-west-2y"
			}
			pool := strings.ToLower("without-" + lost)
			require.NoError(t, env.SetShardAddress(t.Context(), lost, runShard(t, lost)))
			createPool(t, pool, mode, replicas, env.ShardIDs[0], lost)
			createPool(t, bystander, v1beta1.MachineModeNever, 2, env.ShardIDs...)
			before := nodes(t)
			losses, from := env.NewLossChecker(t, bystander), env.AuditEnd(t)
			require.NoError(t, env.ShardServer(lost).Kill(t.Context()))

			p := env.StartProcedure(t, "A shard that is lost", map[string]string{
				"NAMESPACE": installation.Namespace,
				"SHARD":     lost,
				"POOL":      pool,
				"GROUP":     pool,
				"SHARDS":    fmt.Sprintf("[%q]", env.ShardIDs[0]),
			})
			p.Do("Make sure that the instances of the shard do not run any more", func() {})
			p.Run("Remove the shard from the configuration of the operator")
			p.Run("Remove the shard from the pool")
			p.Run("The condition `Ready` of the shard group names an annotation")
			p.Run("If the number is right, set it")
			p.Run("If the pool has Machines")
			p.Run("Wait until the other shards run all replicas")

			env.UntilRunning(t, pool, replicas)
			require.NoError(t, env.SizesAre(t.Context(), pool, replicas))
			untilNodesDeleted(t, before, pool, lost)
			expectKept(t, before, pool, lost)
			expectDeletionsOf(t, from, pool, lost, before)
			env.Scale(t, pool, replicas+1)
			env.UntilRunning(t, pool, replicas+1)
			expectUntouched(t, losses)
		})
	}
}

// A shard is replaced by another: there are never fewer instances than replicas, and only
// instances of the pool are deleted.
func TestReplaceShard(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	const pool, bystander, replicas = "moved", "bystander", 4
	const from, to = "us-west-2v", "us-west-2w"
	kept := env.ShardIDs[0]
	require.NoError(t, env.SetShardAddress(t.Context(), from, runShard(t, from)))
	address := runShard(t, to)
	require.NoError(t, env.ShardServer(to).Stop(t.Context()))
	createPool(t, pool, v1beta1.MachineModeNever, replicas, kept, from)
	createPool(t, bystander, v1beta1.MachineModeNever, 2, env.ShardIDs...)
	before := nodes(t)
	losses, begin := env.NewLossChecker(t, bystander), env.AuditEnd(t)

	p := env.StartProcedure(t, "Replace a shard", map[string]string{
		"NAMESPACE": installation.Namespace,
		"OLD":       from,
		"NEW":       to,
		"ADDRESS":   address,
		"POOL":      pool,
		"GROUP":     pool,
		"SHARDS":    fmt.Sprintf("[%q,%q]", kept, to),
		"REPLICAS":  fmt.Sprint(replicas),
		"SURGE":     fmt.Sprint(2 * replicas),
	})
	p.Do("Start the servers of the new shard", func() { testcluster.Start(t, env.ShardServer(to)) })
	p.Run("Add it to the configuration of the operator")
	p.Run("Raise the replicas")
	known := nodes(t)
	p.Run("Exchange the shards")
	maps.Copy(known, nodes(t))
	expectKept(t, before, pool, from)
	expectSizesOf(t, pool, kept, replicas)
	p.Run("Lower the replicas again")
	p.Run("Remove the old shard from the configuration")
	p.Do("Stop the servers of the old shard", func() { require.NoError(t, env.ShardServer(from).Stop(t.Context())) })

	env.UntilRunning(t, pool, replicas)
	require.NoError(t, env.SizesAre(t.Context(), pool, replicas/2, replicas/2))
	expectDeletionsOf(t, begin, pool, "", known)
	env.Scale(t, pool, replicas+2)
	env.UntilRunning(t, pool, replicas+2)
	expectUntouched(t, losses)
}

// runShard runs a further shard, which no operator knows, until the end of the test, and
// returns its address. In the end nothing is left of it.
func runShard(t *testing.T, id string) string {
	t.Helper()
	address, err := env.Installation.AddShard(t.Context(), id)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		assert.NoError(t, env.SetShardAddress(ctx, id, ""))
		assert.NoError(t, env.ShardServer(id).Stop(ctx))
		for _, key := range []string{storage.GroupsKey(id), storage.ConfigKey(id), storage.AcceptedKey(id), storage.InstancePrefix(id)} {
			assert.NoError(t, os.RemoveAll(filepath.Join(env.Installation.Bucket(), filepath.FromSlash(key))))
		}
	})
	return address
}

// createPool creates a pool, waits until it runs, and deletes it at the end of the test.
func createPool(t *testing.T, name string, mode v1beta1.MachineMode, replicas int32, shards ...string) {
	t.Helper()
	pool := testcluster.NewNstanceMachinePool(name, shards...)
	pool.Spec.MachineMode = mode
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, replicas), pool))
	t.Cleanup(func() { env.DeletePools(t, name) })
	env.UntilRunning(t, name, replicas)
	if mode != v1beta1.MachineModeAlways {
		return
	}
	testcluster.Eventually(t, time.Minute, "the instances have Machines", func(ctx context.Context) error {
		machines, err := env.NstanceMachines().List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelGroup + "=" + name})
		if err == nil && len(machines.Items) != int(replicas) {
			err = fmt.Errorf("%d NstanceMachines", len(machines.Items))
		}
		return err
	})
}

// untilNodesDeleted waits until Cluster API has deleted the Nodes of a pool on a shard.
func untilNodesDeleted(t *testing.T, before map[string]corev1.Node, pool, shard string) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "the Nodes of the shard are deleted", func(ctx context.Context) error {
		now, err := listNodes(ctx)
		if err != nil {
			return err
		}
		for name, node := range before {
			if _, exists := now[name]; exists && isOn(node, pool, shard) {
				return fmt.Errorf("Node %s exists", name)
			}
		}
		return nil
	})
}

// isOn reports whether a Node belongs to a pool, and to a shard unless that is "".
func isOn(node corev1.Node, pool, shard string) bool {
	return pool != "" && node.Labels[v1beta1.LabelGroup] == pool && (shard == "" || node.Labels[v1beta1.LabelShard] == shard)
}

// expectKept fails the test if a Node is missing, except Nodes of a pool on a shard.
func expectKept(t *testing.T, before map[string]corev1.Node, pool, shard string) {
	t.Helper()
	now := nodes(t)
	for name, node := range before {
		if !isOn(node, pool, shard) {
			assert.Equal(t, node.UID, now[name].UID, "Node %s of group %s on shard %s", name, node.Labels[v1beta1.LabelGroup], node.Labels[v1beta1.LabelShard])
		}
	}
}

// expectDeletionsOf fails the test if anything was deleted since from but Nodes, Machines
// and shard groups of a pool, on a shard unless that is "". Nodes that were deleted are looked
// up in known.
func expectDeletionsOf(t *testing.T, from controlplane.Position, pool, shard string, known map[string]corev1.Node) {
	t.Helper()
	unexpected := slices.DeleteFunc(env.Requests(t, from, testcluster.IsDeletion), func(r controlplane.Request) bool {
		switch r.Resource {
		case "nodes", "machines", "nstancemachines":
			// All of them have the name of the instance.
			return isOn(known[r.Name], pool, shard)
		case "nstanceshardgroups":
			return strings.HasPrefix(r.Name, pool+"--") && strings.HasSuffix(r.Name, shard)
		}
		return false
	})
	assert.Empty(t, unexpected, "deletions: %s", testcluster.Describe(unexpected))
}

// expectSizesOf fails the test if an operator has sent a shard a smaller size of a group than
// atLeast since it had that size, or has deleted the group.
func expectSizesOf(t *testing.T, group, shard string, atLeast int32) {
	t.Helper()
	reached := false
	for _, call := range env.Calls(t, shard) {
		switch {
		case call.Group != group:
		case call.Method == installation.DeleteGroup:
			t.Errorf("shard %s received DeleteGroup of %s", shard, group)
		case call.Method == installation.UpsertGroup && call.Size >= atLeast:
			reached = true
		case call.Method == installation.UpsertGroup && reached:
			t.Errorf("shard %s received size %d of %s", shard, call.Size, group)
		}
	}
	assert.True(t, reached, "shard %s never received size %d of %s", shard, atLeast, group)
}

// expectUntouched fails the test if shards were called for a pool since losses began, and
// scales the pool.
func expectUntouched(t *testing.T, losses *testcluster.LossChecker) {
	t.Helper()
	assert.Zero(t, losses.ExpectNone(t), "calls for %s", losses.Group)
	env.Scale(t, losses.Group, 3)
	env.UntilRunning(t, losses.Group, 3)
}
