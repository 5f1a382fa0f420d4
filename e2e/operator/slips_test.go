// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// suspendBinding deletes the binding of a policy until the end of the test.
func suspendBinding(t *testing.T, name string) {
	t.Helper()
	bindings := env.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	binding, err := bindings.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, bindings.Delete(t.Context(), name, metav1.DeleteOptions{}))
	t.Cleanup(func() {
		binding.ResourceVersion, binding.UID = "", ""
		_, err := bindings.Create(context.WithoutCancel(t.Context()), binding, metav1.CreateOptions{})
		assert.NoError(t, err)
	})
}

// An edited size of a shard group is rejected. Without the policy it is reverted before it
// reaches the shard.
func TestEditedShardGroupTerminatesNothing(t *testing.T) {
	const name = "edited"
	env.CreatePoolForTest(t, name, 6)
	env.UntilRunning(t, name, 6)
	witness := env.NewWitness(t, name)
	shardGroup := v1beta1.ShardGroupName(name, shardIDs[0])
	edit := func(ctx context.Context) error {
		_, err := env.NstanceShardGroups().Patch(ctx, shardGroup, types.MergePatchType, []byte(`{"spec":{"size":0}}`), metav1.PatchOptions{})
		return err
	}
	require.NoError(t, forbidden(edit(t.Context()), `spec of NstanceShardGroup "`+shardGroup+`" is written by the operator`))
	_, err := env.PatchNstanceMachinePool(t.Context(), name, `{"spec":{"providerIDList":["kwok:///us-west-2a/other"]}}`)
	require.NoError(t, forbidden(err, `spec.providerIDList of NstanceMachinePool "edited" is written by the operator`))

	suspendBinding(t, "nstance-operator-generated-fields")
	before, err := env.NstanceShardGroups().Get(t.Context(), shardGroup, metav1.GetOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, time.Minute, "the policy has no effect", edit)
	testcluster.Eventually(t, time.Minute, "the size is reverted", func(ctx context.Context) error {
		group, err := env.NstanceShardGroups().Get(ctx, shardGroup, metav1.GetOptions{})
		if err == nil && (group.Spec.Size != before.Spec.Size || group.Generation <= before.Generation+1) {
			err = fmt.Errorf("size %d, generation %d", group.Spec.Size, group.Generation)
		}
		return err
	})
	env.UntilRunning(t, name, 6)
	witness.ExpectNone(t)
}

// A shard group that loses its owner is adopted, and its instances stay.
func TestShardGroupWithoutAnOwnerIsAdopted(t *testing.T) {
	t.Parallel()
	const name = "adopted-again"
	env.CreatePoolForTest(t, name, 3)
	env.UntilRunning(t, name, 3)
	pool, err := env.NstanceMachinePool(t.Context(), name)
	require.NoError(t, err)
	shardGroup := v1beta1.ShardGroupName(name, shardIDs[1])
	_, err = env.NstanceShardGroups().Patch(t.Context(), shardGroup, types.MergePatchType, []byte(`{"metadata":{"ownerReferences":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, time.Minute, "the pool owns it again", func(ctx context.Context) error {
		group, err := env.NstanceShardGroups().Get(ctx, shardGroup, metav1.GetOptions{})
		if err == nil && !metav1.IsControlledBy(group, pool) {
			err = fmt.Errorf("owners %v", group.OwnerReferences)
		}
		return err
	})
	env.UntilRunning(t, name, 3)
	after, err := env.NstanceMachinePool(t.Context(), name)
	require.NoError(t, err)
	assert.Equal(t, pool.Spec.ProviderIDList, after.Spec.ProviderIDList)
}

// The webhook rejects a second MachinePool of a pool. If there is one nevertheless and it is
// deleted, Cluster API deletes the pool. Its instances stay, and the pool is imported again for
// the first MachinePool.
func TestSurplusMachinePoolTerminatesNothing(t *testing.T) {
	const name, surplus = "wanted", "surplus"
	env.CreatePoolForTest(t, name, 3)
	env.UntilRunning(t, name, 3)
	second := testcluster.NewMachinePool(name, 3)
	second.Name = surplus
	testcluster.Eventually(t, time.Minute, "a second MachinePool is rejected", func(ctx context.Context) error {
		_, err := env.MachinePools().Create(ctx, second.DeepCopy(), metav1.CreateOptions{DryRun: dry.DryRun})
		return forbidden(err, `to which MachinePool "wanted" refers already`)
	})
	nodes := env.NodeNames(t, name)
	losses := env.NewLossChecker(t, name)
	uid := func(ctx context.Context) (types.UID, error) {
		pool, err := env.NstanceMachinePool(ctx, name)
		return pool.UID, err
	}
	former, err := uid(t.Context())
	require.NoError(t, err)

	operator := env.OperatorProcess()
	testcluster.Stop(t, operator)
	_, err = env.MachinePools().Create(t.Context(), second, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, time.Minute, "Cluster API knows the surplus MachinePool", func(ctx context.Context) error {
		machinePool, err := env.MachinePools().Get(ctx, surplus, metav1.GetOptions{})
		if err == nil && len(machinePool.Finalizers) == 0 {
			err = errors.New("it has no finalizer")
		}
		return err
	})
	require.NoError(t, env.MachinePools().Delete(t.Context(), surplus, metav1.DeleteOptions{}))
	testcluster.Eventually(t, time.Minute, "Cluster API deletes the pool", func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err == nil && pool.DeletionTimestamp == nil {
			err = errors.New("it is not being deleted")
		}
		return err
	})
	testcluster.Start(t, operator)
	testcluster.Eventually(t, 2*time.Minute, "the surplus MachinePool is deleted, and the pool is imported again", func(ctx context.Context) error {
		if _, err := env.MachinePools().Get(ctx, surplus, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("the surplus MachinePool exists"), err)
		}
		now, err := uid(ctx)
		if err == nil && now == former {
			err = errors.New("it is the former pool")
		}
		return err
	})
	env.UntilRunning(t, name, 3)
	losses.ExpectNone(t)
	assert.ElementsMatch(t, nodes, env.NodeNames(t, name))
}

// A MachinePool that vanishes, because a hand removed its finalizer, or in a move that did not
// know its pool, takes the pool with it: the garbage collector deletes it. Its instances stay, and
// the pool is imported again.
func TestVanishedMachinePoolTerminatesNothing(t *testing.T) {
	const name = "abandoned"
	env.CreatePoolForTest(t, name, 3)
	env.UntilRunning(t, name, 3)
	nodes, losses := env.NodeNames(t, name), env.NewLossChecker(t, name)
	former, err := env.NstanceMachinePool(t.Context(), name)
	require.NoError(t, err)
	from := env.AuditEnd(t)

	// As clusterctl does: Cluster API does not see the deletion.
	env.PatchMachinePool(t, name, fmt.Sprintf(`{"metadata":{"annotations":{%q:""}}}`, clusterv1.PausedAnnotation))
	require.NoError(t, env.MachinePools().Delete(t.Context(), name, metav1.DeleteOptions{}))
	env.PatchMachinePool(t, name, `{"metadata":{"finalizers":null}}`)
	testcluster.Eventually(t, 2*time.Minute, "the pool is imported again", func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err == nil && pool.UID == former.UID {
			err = errors.New("it is the former pool")
		}
		return err
	})
	env.UntilRunning(t, name, 3)
	losses.ExpectNone(t)
	deletions := env.Writes(t, from, func(r controlplane.Request) bool { return r.Action() == "delete nodes" })
	assert.Empty(t, deletions, "Nodes were deleted")
	assert.ElementsMatch(t, nodes, env.NodeNames(t, name))
}
