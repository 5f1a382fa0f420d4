// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/shardrelay"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// The instances of a pool with Retain run on when the pool is deleted, and so do their
// Nodes. The pool that the group gets next has the same ones.
func TestRetainedPool(t *testing.T) {
	calls := recordCalls(t)
	for _, test := range []struct {
		name     string
		machines v1beta1.MachinesMode
		remove   func(ctx context.Context, name string) error
	}{
		{"retained-pool", v1beta1.MachinesNever, func(ctx context.Context, name string) error {
			return env.NstanceMachinePools().Delete(ctx, name, metav1.DeleteOptions{})
		}},
		{"retained-machinepool", v1beta1.MachinesNever, func(ctx context.Context, name string) error {
			return env.MachinePools().Delete(ctx, name, metav1.DeleteOptions{})
		}},
		{"retained-machines", v1beta1.MachinesAlways, func(ctx context.Context, name string) error {
			return env.MachinePools().Delete(ctx, name, metav1.DeleteOptions{})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			const replicas = 3
			pool := testcluster.NewNstanceMachinePool(test.name, shardIDs...)
			pool.Spec.Machines, pool.Spec.DeletionPolicy = test.machines, v1beta1.DeletionRetain
			require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(test.name, replicas), pool))
			env.UntilRunning(t, test.name, replicas)
			t.Cleanup(func() { deletePool(t, test.name) })
			if test.machines == v1beta1.MachinesAlways {
				untilMachines(t, test.name, replicas)
			}
			before, err := env.NstanceMachinePool(t.Context(), test.name)
			require.NoError(t, err)
			instances := instancesOf(t, test.name)
			require.Len(t, instances, replicas)

			from := env.AuditEnd(t)
			calls.reset()
			require.NoError(t, test.remove(t.Context(), test.name))
			testcluster.Eventually(t, 3*time.Minute, "the group has another pool", func(ctx context.Context) error {
				// The operator imports the group. A pool that a user creates first is as good.
				after, err := env.NstanceMachinePool(ctx, test.name)
				if err == nil && after.UID == before.UID {
					err = fmt.Errorf("the pool is not deleted: %+v", after.Status.Conditions)
				}
				return err
			})
			env.UntilRunning(t, test.name, replicas)
			assert.Equal(t, instances, instancesOf(t, test.name), "the instances and the UIDs of their Nodes")
			assert.Empty(t, calls.removing(), "calls that remove instances")
			if deleted := env.Requests(t, from, deletesNode(instances)); len(deleted) > 0 {
				t.Errorf("Nodes were deleted:%s", testcluster.Describe(deleted))
			}
			if evicted := env.Requests(t, from, func(r controlplane.Request) bool { return r.Subresource == "eviction" }); len(evicted) > 0 {
				t.Errorf("Pods were evicted:%s", testcluster.Describe(evicted))
			}
		})
	}
}

// The policy counts also if it is set just before the deletion.
func TestRetainIsSetJustBeforeTheDeletion(t *testing.T) {
	const name, replicas = "retained-late", 3
	runPool(t, name, replicas, shardIDs...)
	t.Cleanup(func() { deletePool(t, name) })
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

// recordedCalls are the calls of the operator that remove instances.
type recordedCalls struct {
	mu    sync.Mutex
	calls []string
	// sizes are those that were sent last, by shard and group.
	sizes map[string]int32
}

// recordCalls lets the operator reach the shards through relays, until the end of the test.
func recordCalls(t *testing.T) *recordedCalls {
	t.Helper()
	recorded := &recordedCalls{sizes: map[string]int32{}}
	endpoints, err := env.Kube.CoreV1().ConfigMaps(installation.Namespace).Get(t.Context(), "nstance-shards", metav1.GetOptions{})
	require.NoError(t, err)
	for _, shard := range shardIDs {
		relay := &shardrelay.Relay{Request: func(_ context.Context, message proto.Message) error {
			recorded.record(shard, message)
			return nil
		}}
		address, err := relay.Start(context.WithoutCancel(t.Context()), env.Installation, shard)
		require.NoError(t, err)
		require.NoError(t, env.SetShardAddress(t.Context(), shard, address))
		t.Cleanup(func() {
			assert.NoError(t, env.SetShardAddress(context.WithoutCancel(t.Context()), shard, endpoints.Data[shard]))
		})
	}
	return recorded
}

func (r *recordedCalls) record(shard string, message proto.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch request := message.(type) {
	case *nstancev1.DeleteGroupRequest:
		r.calls = append(r.calls, fmt.Sprintf("%s: DeleteGroup %v", shard, request))
	case *nstancev1.DeleteInstanceRequest:
		r.calls = append(r.calls, fmt.Sprintf("%s: DeleteInstance %v", shard, request))
	case *nstancev1.UpsertGroupRequest:
		key := shard + "/" + request.GetKey()
		if before, known := r.sizes[key]; known && request.GetConfig().GetSize() < before {
			r.calls = append(r.calls, fmt.Sprintf("%s: UpsertGroup from %d, %v", shard, before, request))
		}
		r.sizes[key] = request.GetConfig().GetSize()
	}
}

func (r *recordedCalls) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = nil
}

// removing returns the calls since the last reset.
func (r *recordedCalls) removing() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
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
