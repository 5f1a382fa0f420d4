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
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/e2e/testcluster"
)

// Labels and taints of a pool are set on its Nodes, changed and removed without a replacement, also a
// label that no kubelet may set.
func TestLabelsAndTaintsChangeInPlace(t *testing.T) {
	t.Parallel()
	const name, role, taint = "labeled", "node-role.kubernetes.io/labeled", "example.com/dedicated"
	env.CreatePoolForTest(t, name, 3)
	env.UntilRunning(t, name, 3)
	before := env.NodeNames(t, name)
	patch := func(patch string) {
		t.Helper()
		_, err := env.PatchNstanceMachinePool(t.Context(), name, patch)
		require.NoError(t, err)
	}
	until := func(what string, has func(*corev1.Node) error) {
		t.Helper()
		testcluster.Eventually(t, time.Minute, what, func(ctx context.Context) error {
			nodes, err := env.Nodes(ctx, name)
			if err != nil {
				return err
			}
			for i := range nodes {
				if err := has(&nodes[i]); err != nil {
					return fmt.Errorf("Node %s: %w", nodes[i].Name, err)
				}
			}
			return nil
		})
	}
	valueOf := func(node *corev1.Node) string {
		for _, t := range node.Spec.Taints {
			if t.Key == taint {
				return t.Value + ":" + string(t.Effect)
			}
		}
		return ""
	}
	patch(fmt.Sprintf(`{"spec":{"node":{"labels":{%q:"yes"},"taints":[{"key":%q,"value":"a","effect":"NoSchedule","propagation":"Always"}]}}}`, role, taint))
	until("the Nodes have label and taint", func(node *corev1.Node) error {
		if node.Labels[role] != "yes" || valueOf(node) != "a:NoSchedule" {
			return fmt.Errorf("label %q, taint %q", node.Labels[role], valueOf(node))
		}
		return nil
	})
	patch(fmt.Sprintf(`{"spec":{"node":{"labels":{%q:"no"},"taints":[{"key":%q,"value":"b","effect":"NoSchedule","propagation":"Always"}]}}}`, role, taint))
	until("they have others", func(node *corev1.Node) error {
		if node.Labels[role] != "no" || valueOf(node) != "b:NoSchedule" {
			return fmt.Errorf("label %q, taint %q", node.Labels[role], valueOf(node))
		}
		return nil
	})
	patch(`{"spec":{"node":null}}`)
	until("they have none", func(node *corev1.Node) error {
		if _, labeled := node.Labels[role]; labeled || valueOf(node) != "" {
			return fmt.Errorf("label %q, taint %q", node.Labels[role], valueOf(node))
		}
		return nil
	})
	assert.ElementsMatch(t, before, env.NodeNames(t, name), "no instance is replaced")
}
