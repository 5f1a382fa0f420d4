// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A shard that has no more machines of a type costs no others their place: the
// autoscaler takes back what it did not get, and that is what goes.
func TestShortfallIsTakenBack(t *testing.T) {
	t.Parallel()
	const name = "shortfall"
	watchOperator(t)
	group := createPool(t, name, 3, func(_ *clusterv1.MachinePool, pool *v1beta1.NstanceMachinePool) {
		pool.Spec.InstanceType = scarceType
	})
	untilRunning(t, name, 3)
	from := auditEnd(t)
	if err := group.increaseSize(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	// Of shards of one size the last one would shrink.
	scarce := shardIDs[0]
	eventually(t, "shard "+scarce+" says that it has no more", func(ctx context.Context) error {
		shardGroup, err := env.nstance.InfrastructureV1beta1().NstanceShardGroups(nstance.Namespace).
			Get(ctx, v1beta1.ShardGroupName(name, scarce), metav1.GetOptions{})
		if err != nil {
			return err
		}
		ready := meta.FindStatusCondition(shardGroup.Status.Conditions, v1beta1.ConditionReady)
		if ready == nil || ready.Reason != v1beta1.ReasonProviderError || !strings.Contains(ready.Message, "quota") {
			return fmt.Errorf("its shard group says %+v", ready)
		}
		return nil
	})
	var before []string
	eventually(t, "the other shards have what they are to", func(ctx context.Context) error {
		nodes, err := group.nodes(ctx)
		if before = namesOfNodes(nodes); err == nil && len(nodes) != 5 {
			err = fmt.Errorf("there are %d Nodes", len(nodes))
		}
		return err
	})

	if err := group.decreaseTargetSize(t.Context(), 2); err == nil {
		t.Error("the autoscaler itself takes back what it got")
	}
	if err := group.decreaseTargetSize(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	after := untilRunning(t, name, 5)
	if !slices.Equal(after.ids(), before) {
		t.Errorf("of the Nodes %v are left %v", before, after.ids())
	}
	if sizes, err := sizesOf(t.Context(), name); err != nil || fmt.Sprint(sizes) != "[1 2 2]" {
		t.Errorf("the sizes are %v, want [1 2 2] (error %v)", sizes, err)
	}
	expectNodeChanges(t, from, name, 2)
}
