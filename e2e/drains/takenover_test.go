// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// takenOver is a group whose drains are reported with other provider ids than its Nodes have, as
// if new kubelets had taken over the Nodes of former instances.
const takenOver = "taken-over"

// The provider id of a Node cannot change, so the Node of a former instance is the Node of the new
// instance, whose Pods run on it.
func TestInstanceWithTheNodeOfAFormerInstanceIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	node := createGroup(t, impatientShard, takenOver, 1)[0]
	env.CreateNamespace(t, takenOver)
	pod := newPod(takenOver, "pod", node)
	env.CreatePods(t, timeout, pod)

	from := env.AuditEnd(t)
	env.Scale(t, takenOver, 0)
	testcluster.Eventually(t, timeout, "the shard group says why the drain is blocked", func(ctx context.Context) error {
		group, err := env.ShardGroup(ctx, takenOver, impatientShard)
		if err != nil {
			return err
		}
		if list := group.Status.BlockedDrains; len(list) != 1 || list[0].Instance != node || list[0].Reason != v1beta1.ReasonProviderIDMismatch {
			return fmt.Errorf("blocked drains are %+v", list)
		}
		return testcluster.HasCondition(group.Status.Conditions, v1beta1.ConditionDrainsProgressing, metav1.ConditionFalse, v1beta1.ReasonDrainBlocked)
	})
	testcluster.Eventually(t, timeout, "the shard deletes the instance at the deadline", func(context.Context) error {
		if d, _ := env.drains[impatientShard].ofInstance(node); d.Deleted.IsZero() {
			return fmt.Errorf("drain %+v", d)
		}
		return nil
	})
	d, known := env.drains[impatientShard].ofInstance(node)
	require.True(t, known)
	assert.Empty(t, d.Acknowledged, "the drain was acknowledged as a drain without a Node")
	assert.Empty(t, evictions(t, from, takenOver, pod.Name), "the Pod may belong to another machine")
	assert.Empty(t, env.OperatorRequests(t, from, isCordon(node)))
}
