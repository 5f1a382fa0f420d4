// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Nobody scales a static pool below the size that its shards guarantee: not a user, whether an
// operator runs or not, not the operator without the policy, and no other client of the server.
// An administrator of the servers may allow it.
func TestMinimumOfAStaticPool(t *testing.T) {
	const name = "control"
	removeGroups := configureGroups(t, map[string]map[string]int32{name: {shardIDs[0]: 2, shardIDs[1]: 1, shardIDs[2]: 1}})
	t.Cleanup(removeGroups)
	untilMinimum := func(want *int32) {
		testcluster.Eventually(t, 2*time.Minute, "the pool has its minimum", func(ctx context.Context) error {
			pool, err := env.NstanceMachinePool(ctx, name)
			if err == nil && !ptr.Equal(pool.Status.MinReplicas, want) {
				err = fmt.Errorf("status.minReplicas is %v", pool.Status.MinReplicas)
			}
			return err
		})
	}
	untilMinimum(ptr.To[int32](3))
	env.UntilRunning(t, name, 4)
	t.Run("another client of the server", func(t *testing.T) {
		_, err := env.ShardClient(t, shardIDs[0]).UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Key: name, Config: &nstancev1.GroupConfig{Size: 0}})
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.ErrorContains(t, err, "must be at least 1 (limits.min_size of the static group)")
	})
	// An API server may not know the kind of the parameters yet.
	testcluster.Eventually(t, time.Minute, "the policy is in force", func(ctx context.Context) error {
		return forbidden(patchReplicasDry(ctx, name, "0"), "cannot have 0 replicas")
	})
	losses, from := env.NewLossChecker(t, name), env.AuditEnd(t)
	expectRefusals := func(t *testing.T) {
		t.Helper()
		const refusal = `MachinePool "control" cannot have 0 replicas: the shards of static group "control" keep at least 3, limits.min_size in the configuration of their servers`
		output, err := env.KubectlCommand(t.Context(), "scale", "machinepool", name, "--replicas=0").CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(output), refusal)
		if err := forbidden(patchReplicasDry(t.Context(), name, "0"), refusal); err != nil {
			t.Error(err)
		}
		if err := forbidden(patchReplicasDry(t.Context(), name, "2", "scale"), "cannot have 2 replicas"); err != nil {
			t.Error(err)
		}
		require.NoError(t, patchReplicasDry(t.Context(), name, "3", "scale"))
	}
	t.Run("a user", expectRefusals)
	t.Run("a user, and no operator", func(t *testing.T) {
		testcluster.Stop(t, env.OperatorProcess())
		expectRefusals(t)
	})
	t.Run("without the policy", func(t *testing.T) {
		bindings := env.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
		binding, err := bindings.Get(t.Context(), "nstance-operator-minimum", metav1.GetOptions{})
		require.NoError(t, err)
		require.NoError(t, bindings.Delete(t.Context(), binding.Name, metav1.DeleteOptions{}))
		testcluster.Eventually(t, time.Minute, "the replicas are accepted", func(ctx context.Context) error { return patchReplicasDry(ctx, name, "0") })
		env.Scale(t, name, 0)
		testcluster.Eventually(t, time.Minute, "the pool says why it is not scaled", func(ctx context.Context) error {
			return readyIs(ctx, name, metav1.ConditionFalse, v1beta1.ReasonBelowMinimum,
				fmt.Sprintf(`the shards keep at least 3 instances (%s 1, %s 1, %s 1), and MachinePool "control" has 0 replicas; the sizes stay`, shardIDs[0], shardIDs[1], shardIDs[2]))
		})
		env.Scale(t, name, 4)
		env.UntilRunning(t, name, 4)
		binding.ResourceVersion, binding.UID = "", ""
		_, err = bindings.Create(t.Context(), binding, metav1.CreateOptions{})
		require.NoError(t, err)
		testcluster.Eventually(t, time.Minute, "the policy is in force", func(ctx context.Context) error {
			return forbidden(patchReplicasDry(ctx, name, "0"), "cannot have 0 replicas")
		})
	})
	t.Run("another order of the shards", func(t *testing.T) {
		_, err := env.PatchNstanceMachinePool(t.Context(), name, fmt.Sprintf(`{"spec":{"shards":[%q,%q,%q]}}`, shardIDs[2], shardIDs[1], shardIDs[0]))
		require.NoError(t, err)
		// The operator may see the replicas before the order.
		testcluster.Eventually(t, time.Minute, "the order is known", func(ctx context.Context) error {
			pool, err := env.NstanceMachinePool(ctx, name)
			if err == nil && pool.Status.ObservedGeneration != pool.Generation {
				err = fmt.Errorf("generation %d of %d", pool.Status.ObservedGeneration, pool.Generation)
			}
			return err
		})
		env.Scale(t, name, 5)
		env.UntilRunning(t, name, 5)
		require.NoError(t, env.SizesAre(t.Context(), name, 2, 1, 2))
	})
	losses.ExpectNone(t)
	deletions := env.Writes(t, from, func(r controlplane.Request) bool { return r.Action() == "delete nodes" })
	assert.Empty(t, deletions, "Nodes were deleted")

	for _, shard := range shardIDs {
		configureGroup(t, shard, func(groups map[string]installation.Group) {
			group := groups[name]
			group.MinSize = ptr.To[int32](0)
			groups[name] = group
		})
	}
	untilMinimum(nil)
	// The policy may still know the minimum.
	testcluster.Eventually(t, time.Minute, "the replicas are accepted", func(ctx context.Context) error { return patchReplicasDry(ctx, name, "0") })
	env.Scale(t, name, 0)
	env.UntilRunning(t, name, 0)
}

// readyIs succeeds when the condition Ready of a pool is as wanted.
func readyIs(ctx context.Context, name string, status metav1.ConditionStatus, reason, message string) error {
	pool, err := env.NstanceMachinePool(ctx, name)
	if err != nil {
		return err
	}
	if condition := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionReady); condition == nil || condition.Message != message {
		return fmt.Errorf("condition Ready is %+v, want %q", condition, message)
	}
	return testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionReady, status, reason)
}
