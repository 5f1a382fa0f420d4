// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// conditionGPU is a condition that no kubelet sets.
const conditionGPU = corev1.NodeConditionType("example.com/GPU")

// Too many unhealthy Nodes replace nothing. When a single one is left, its instance is replaced, and no
// other is.
func TestTheInstanceOfAnUnhealthyNodeIsReplaced(t *testing.T) {
	t.Parallel()
	const name = "unhealthy"
	env.CreatePoolForTest(t, name, 3)
	env.UntilRunning(t, name, 3)
	before := env.NodeNames(t, name)
	setGPU(t, before[0], corev1.ConditionFalse)
	setGPU(t, before[1], corev1.ConditionFalse)
	_, err := env.PatchNstanceMachinePool(t.Context(), name, fmt.Sprintf(
		`{"spec":{"remediation":{"checks":{"unhealthyNodeConditions":[{"type":%q,"status":"False","timeoutSeconds":60}]}}}}`, conditionGPU))
	require.NoError(t, err)
	remediating := func(status metav1.ConditionStatus, reason string) {
		t.Helper()
		testcluster.Eventually(t, 2*time.Minute, "Remediating is "+reason, func(ctx context.Context) error {
			pool, err := env.NstanceMachinePool(ctx, name)
			if err != nil {
				return err
			}
			return testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionRemediating, status, reason)
		})
	}
	remediating(metav1.ConditionTrue, v1beta1.ReasonTooManyUnhealthy)
	env.UntilNoWrites(t, 2*time.Minute, 50, testcluster.ByOperator, writesPool(name))
	assert.ElementsMatch(t, before, env.NodeNames(t, name))

	setGPU(t, before[1], corev1.ConditionTrue)
	testcluster.Eventually(t, 2*time.Minute, "the instance is replaced", func(ctx context.Context) error {
		nodes, err := env.Nodes(ctx, name)
		if err != nil {
			return err
		}
		for i := range nodes {
			if nodes[i].Name == before[0] {
				return fmt.Errorf("Node %s exists", nodes[i].Name)
			}
		}
		return nil
	})
	env.UntilRunning(t, name, 3)
	assert.Subset(t, env.NodeNames(t, name), before[1:], "the others stay")
	remediating(metav1.ConditionFalse, v1beta1.ReasonNotRemediating)
	env.UntilNoWrites(t, 2*time.Minute, 50, testcluster.ByOperator, writesPool(name))
}

// setGPU sets the condition of a Node, which it has had for an hour.
func setGPU(t *testing.T, node string, status corev1.ConditionStatus) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: conditionGPU, Status: status, Reason: "Test", LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour)),
	}}}})
	require.NoError(t, err)
	_, err = env.NodeKube.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}
