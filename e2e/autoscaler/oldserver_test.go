// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A pool has no Machines as long as one of its shards cannot let a chosen
// instance go. It says so, and is scaled as ever.
func TestOldServer(t *testing.T) {
	t.Parallel()
	const name = "old"
	watchOperator(t)
	shards := []v1beta1.Identifier{v1beta1.Identifier(shardIDs[0]), oldShard}
	group := createPool(t, name, 2, func(_ *clusterv1.MachinePool, pool *v1beta1.NstanceMachinePool) { pool.Spec.Shards = shards })
	untilWithout(t, name, 2, v1beta1.ReasonUnsupportedByServer)
	for _, size := range []int{5, 1} {
		if err := group.setSize(t.Context(), int64(size)); err != nil {
			t.Fatal(err)
		}
		untilWithout(t, name, size, v1beta1.ReasonUnsupportedByServer)
	}
	pool, err := getPool(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	condition := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionMachinesEnabled)
	if !strings.Contains(condition.Message, oldShard) || strings.Contains(condition.Message, shardIDs[0]) {
		t.Errorf("it says %q, want shard %s alone to be named", condition.Message, oldShard)
	}

	// The autoscaler can make it grow, and not take what it likes.
	if err := group.increaseSize(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	untilWithout(t, name, 2, v1beta1.ReasonUnsupportedByServer)
	nodes, err := group.nodes(t.Context())
	if err != nil || len(nodes) != 2 {
		t.Fatalf("the autoscaler sees %d Nodes, error %v", len(nodes), err)
	}
	from := auditEnd(t)
	if err := group.deleteNodes(t.Context(), nodes[0]); !errors.Is(err, errUnknownMachine) {
		t.Errorf("a Node was let go: %v, want %v", err, errUnknownMachine)
	}
	expectNodeChanges(t, from, name, 0)
}

// A pool that asks for Machines gets none on an old server either, and gets them
// when that shard is no longer one of its own.
func TestOldServerLeavesPool(t *testing.T) {
	t.Parallel()
	const name = "leaves"
	watchOperator(t)
	createPool(t, name, 2, notScaled, func(_ *clusterv1.MachinePool, pool *v1beta1.NstanceMachinePool) {
		pool.Spec.Shards = []v1beta1.Identifier{v1beta1.Identifier(shardIDs[0]), oldShard}
		pool.Spec.Machines = v1beta1.MachinesAlways
	})
	untilWithout(t, name, 2, v1beta1.ReasonUnsupportedByServer)
	patchPool(t, name, fmt.Sprintf(`{"spec":{"shards":[%q]}}`, shardIDs[0]))
	untilRunning(t, name, 2)
	eventually(t, "it says that it has Machines", func(ctx context.Context) error {
		if err := machinesAre(ctx, name, metav1.ConditionTrue, v1beta1.ReasonMachinesEnabled); err != nil {
			return err
		}
		pool, err := getPool(ctx, name)
		if err == nil && ptr.Deref(pool.Status.DesiredReplicas, -1) != 2 {
			err = fmt.Errorf("it wants %d", ptr.Deref(pool.Status.DesiredReplicas, -1))
		}
		return err
	})
}
