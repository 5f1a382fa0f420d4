// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

// The instances of a pool with Retain continue to run when the pool is deleted, and their Nodes
// stay. The next pool of the group has the same instances.
func TestRetainedPool(t *testing.T) {
	t.Parallel()
	tests := []retained{
		{"retained-pool", v1beta1.MachineModeNever, func(ctx context.Context, name string) error {
			return env.NstanceMachinePools().Delete(ctx, name, metav1.DeleteOptions{})
		}},
		{"retained-machines", v1beta1.MachineModeAlways, func(ctx context.Context, name string) error {
			return env.MachinePools().Delete(ctx, name, metav1.DeleteOptions{})
		}},
	}
	if tier.Full() {
		tests = append(tests, retained{"retained-machinepool", v1beta1.MachineModeNever, func(ctx context.Context, name string) error {
			return env.MachinePools().Delete(ctx, name, metav1.DeleteOptions{})
		}})
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
}

// retained is a pool that is deleted, and the function that deletes it.
type retained struct {
	name     string
	machines v1beta1.MachineMode
	remove   func(ctx context.Context, name string) error
}

func (r retained) run(t *testing.T) {
	const replicas = 3
	pool := testcluster.NewNstanceMachinePool(r.name, shardIDs...)
	pool.Spec.MachineMode, pool.Spec.DeletionPolicy = r.machines, v1beta1.DeletionRetain
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(r.name, replicas), pool))
	env.UntilRunning(t, r.name, replicas)
	t.Cleanup(func() { deletePools(t, r.name) })
	if r.machines == v1beta1.MachineModeAlways {
		untilMachines(t, r.name, replicas)
	}
	before, err := env.NstanceMachinePool(t.Context(), r.name)
	require.NoError(t, err)
	instances := instancesOf(t, r.name)
	require.Len(t, instances, replicas)

	losses, from := env.NewLossChecker(t, r.name), env.AuditEnd(t)
	losses.IgnoreOtherGroups = true
	require.NoError(t, r.remove(t.Context(), r.name))
	testcluster.Eventually(t, 3*time.Minute, "the group has another pool", func(ctx context.Context) error {
		// The operator imports the group. A user may have created the pool first.
		after, err := env.NstanceMachinePool(ctx, r.name)
		if err == nil && after.UID == before.UID {
			err = fmt.Errorf("the pool is not deleted: %+v", after.Status.Conditions)
		}
		return err
	})
	env.UntilRunning(t, r.name, replicas)
	assert.Equal(t, instances, instancesOf(t, r.name), "the instances and the UIDs of their Nodes")
	losses.ExpectNone(t)
	if deleted := env.Requests(t, from, deletesNode(instances)); len(deleted) > 0 {
		t.Errorf("Nodes were deleted:%s", testcluster.Describe(deleted))
	}
	if evicted := env.Requests(t, from, func(r controlplane.Request) bool { return r.Subresource == "eviction" }); len(evicted) > 0 {
		t.Errorf("Pods were evicted:%s", testcluster.Describe(evicted))
	}
}

// The policy counts also if it is set just before the deletion.
func TestRetainIsSetJustBeforeTheDeletion(t *testing.T) {
	t.Parallel()
	const name, replicas = "retained-late", 3
	runPool(t, name, replicas, shardIDs...)
	t.Cleanup(func() { deletePools(t, name) })
	before, err := env.NstanceMachinePool(t.Context(), name)
	require.NoError(t, err)
	instances := instancesOf(t, name)
	_, err = env.NstanceMachinePools().Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"deletionPolicy":"Retain"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, env.NstanceMachinePools().Delete(t.Context(), name, metav1.DeleteOptions{}))
	testcluster.Eventually(t, 3*time.Minute, "the pool is deleted", func(ctx context.Context) error {
		after, err := env.NstanceMachinePool(ctx, name)
		if err == nil && after.UID == before.UID {
			return errors.New("it exists")
		}
		return nil
	})
	env.UntilRunning(t, name, replicas)
	assert.Equal(t, instances, instancesOf(t, name))
}

// instancesOf returns the UIDs of the Nodes of a group by the ids of its instances, as the
// servers list them.
func instancesOf(t *testing.T, name string) map[string]types.UID {
	t.Helper()
	nodes, err := env.Nodes(t.Context(), name)
	require.NoError(t, err)
	uids := map[string]types.UID{}
	for _, node := range nodes {
		uids[node.Spec.ProviderID] = node.UID
	}
	found := map[string]types.UID{}
	for _, shard := range shardIDs {
		group, err := env.Group(t.Context(), shard, name)
		require.NoError(t, err)
		for _, instance := range group.GetInstances().GetInstances() {
			found[instance.GetId()+" "+instance.GetStatus()] = uids[instance.GetProviderId()]
		}
	}
	return found
}

// untilMachines waits until the instances of a pool have Machines that run.
func untilMachines(t *testing.T, name string, count int) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "the instances have Machines", func(ctx context.Context) error {
		machines, err := env.Machines().List(ctx, metav1.ListOptions{LabelSelector: "cluster.x-k8s.io/pool-name=" + name})
		if err != nil {
			return err
		}
		running := 0
		for _, machine := range machines.Items {
			if machine.Status.NodeRef.IsDefined() {
				running++
			}
		}
		if running != count {
			return fmt.Errorf("%d of %d Machines have a Node", running, len(machines.Items))
		}
		return nil
	})
}

func deletesNode(instances map[string]types.UID) testcluster.Match {
	names := map[string]bool{}
	for instance := range maps.Keys(instances) {
		var name string
		_, _ = fmt.Sscan(instance, &name)
		names[name] = true
	}
	return func(r controlplane.Request) bool { return r.Resource == "nodes" && r.Verb == "delete" && names[r.Name] }
}
