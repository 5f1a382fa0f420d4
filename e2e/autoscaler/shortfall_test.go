// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// When a shard has no more instances of a type, no other instance is deleted: the
// autoscaler cancels the shortfall, and only the pending instance is removed.
func TestShortfallIsCancelled(t *testing.T) {
	t.Parallel()
	const name = "shortfall"
	watchOperator(t)
	group := createPool(t, name, 3, func(_ *clusterv1.MachinePool, pool *v1beta1.NstanceMachinePool) {
		pool.Spec.InstanceType = scarceType
	})
	untilRunning(t, name, 3)
	from := env.AuditEnd(t)
	require.NoError(t, group.increaseSize(t.Context(), 3))
	// Without the shortfall, the last of equal shards would shrink.
	scarce := shardIDs[0]
	testcluster.Eventually(t, timeout, "shard "+scarce+" reports its quota", func(ctx context.Context) error {
		shardGroup, err := env.ShardGroup(ctx, name, scarce)
		if err != nil {
			return err
		}
		ready := meta.FindStatusCondition(shardGroup.Status.Conditions, v1beta1.ConditionReady)
		if ready == nil || ready.Reason != v1beta1.ReasonProviderError || !strings.Contains(ready.Message, "quota") {
			return fmt.Errorf("condition Ready of its shard group is %+v", ready)
		}
		return nil
	})
	var before []string
	testcluster.Eventually(t, timeout, "the other shards have their instances", func(ctx context.Context) error {
		nodes, err := group.nodes(ctx)
		if before = namesOfNodes(nodes); err == nil && len(nodes) != 5 {
			err = fmt.Errorf("there are %d Nodes", len(nodes))
		}
		return err
	})

	if err := group.decreaseTargetSize(t.Context(), 2); err == nil {
		t.Error("the autoscaler itself cancels existing instances")
	}
	require.NoError(t, group.decreaseTargetSize(t.Context(), 1))
	after := untilRunning(t, name, 5)
	if !slices.Equal(after.ids(), before) {
		t.Errorf("of the Nodes %v, %v are left", before, after.ids())
	}
	if sizes, err := sizesOf(t.Context(), name); err != nil || fmt.Sprint(sizes) != "[1 2 2]" {
		t.Errorf("the sizes are %v, want [1 2 2] (error %v)", sizes, err)
	}
	expectNodeChanges(t, from, name, 2)
}
