// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardfaults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// pool is the pool that must not lose instances.
const pool = "steady"

// Nothing is deleted because a shard does not report something, reports it late or cannot store
// it, and no fault needs an administrator: the scale-up that it interrupts completes.
func TestShardFaults(t *testing.T) {
	env.ExpectNoLosses(t, pool, slices.Concat(
		serverFaults(), networkFaults(), storageFaults(), fullFaults(), configurationFaults(),
	), nil)
}

func untilUnreachable(t *testing.T) {
	t.Helper()
	env.UntilShardsReachable(t, pool, metav1.ConditionFalse, v1beta1.ReasonShardUnreachable)
}

// The witness of the faults reports each kind of loss. The test causes the losses, and operator
// and servers repair them.
func TestWitness(t *testing.T) {
	const name, other, replicas = "witnessed", "witnessed-machine", 6
	shard := shardIDs[0]
	require.NoError(t, env.CreatePoolOnAllShards(t.Context(), name, replicas))
	env.UntilRunning(t, name, replicas)
	client := env.ShardClient(t, shard)
	// instance returns an instance of the group on the shard. The operator may only be about to
	// create a group that was deleted: the pool's status still counts the instances of before.
	instance := func(t *testing.T) (id string) {
		t.Helper()
		testcluster.Eventually(t, 2*time.Minute, "the shard has an instance", func(ctx context.Context) error {
			group, err := env.Group(ctx, shard, name)
			if err != nil {
				return err
			}
			instances := group.GetInstances().GetInstances()
			if len(instances) == 0 {
				return fmt.Errorf("the group has no instance: %v", group)
			}
			id = instances[0].GetId()
			return nil
		})
		return id
	}
	for _, loss := range []struct {
		name  string
		cause func(t *testing.T)
		// reported are contained in the reported losses.
		reported []string
	}{
		{"nothing", func(*testing.T) {}, nil},
		{"a smaller group", func(t *testing.T) {
			group, err := env.Group(t.Context(), shard, name)
			require.NoError(t, err)
			_, err = client.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
				Key: name, Config: &nstancev1.GroupConfig{Template: "worker", Size: group.GetSize() - 1},
			})
			require.NoError(t, err)
		}, []string{"received UpsertGroup of witnessed with size 1, it had 2"}},
		{"a deleted group", func(t *testing.T) {
			_, err := client.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: name})
			require.NoError(t, err)
		}, []string{"received DeleteGroup of witnessed"}},
		{"a deleted instance", func(t *testing.T) {
			id := instance(t)
			_, err := client.DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: id})
			require.NoError(t, err)
			untilReplaced(t, shard, name, id)
		}, []string{"received DeleteInstance of", "does not have instance"}},
		{"an acknowledged drain", func(t *testing.T) {
			// The server rejects it, because the instance does not drain.
			_, _ = client.AcknowledgeDrained(t.Context(), &nstancev1.DrainAckRequest{InstanceId: instance(t)})
		}, []string{"received AcknowledgeDrained of"}},
		{"a deleted Node", func(t *testing.T) {
			id := instance(t)
			require.NoError(t, env.Kube.CoreV1().Nodes().Delete(t.Context(), id, metav1.DeleteOptions{}))
			untilReplaced(t, shard, name, id)
		}, []string{"delete nodes", "does not have instance"}},
		{"a deleted Machine", func(t *testing.T) {
			env.CreateMachine(t, other, name, "")
			testcluster.Eventually(t, 2*time.Minute, "the Machine runs", func(ctx context.Context) error {
				machine, err := env.Machines().Get(ctx, other, metav1.GetOptions{})
				if err == nil && !machine.Status.NodeRef.IsDefined() {
					err = fmt.Errorf("the Machine is %s", machine.Status.Phase)
				}
				return err
			})
			require.NoError(t, env.Machines().Delete(t.Context(), other, metav1.DeleteOptions{}))
			testcluster.Eventually(t, 2*time.Minute, "the Machine is deleted", func(ctx context.Context) error {
				return env.MachineDeleted(ctx, other, "")
			})
		}, []string{"delete machines"}},
	} {
		t.Run(loss.name, func(t *testing.T) {
			witness := env.NewWitness(t, name)
			loss.cause(t)
			env.UntilRunning(t, name, replicas)
			losses, _ := witness.Losses(t)
			for _, reported := range loss.reported {
				if !slices.ContainsFunc(losses, func(l string) bool { return strings.Contains(l, reported) }) {
					t.Errorf("no loss contains %q: %q", reported, losses)
				}
			}
			if len(loss.reported) == 0 {
				require.Empty(t, losses)
			}
		})
	}
}

// untilReplaced waits until the pool has another instance instead of id on a shard.
func untilReplaced(t *testing.T, shard, name, id string) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "the instance is replaced", func(ctx context.Context) error {
		group, err := env.Group(ctx, shard, name)
		if err != nil {
			return err
		}
		for _, instance := range group.GetInstances().GetInstances() {
			if instance.GetId() == id {
				return fmt.Errorf("instance %s is listed: %v", id, instance)
			}
		}
		return nil
	})
}
