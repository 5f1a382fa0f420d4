// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// scaleDownDisabled is the annotation of a Node that the autoscaler does not remove
// (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md).
const scaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"

// While the drain of an outdated instance is blocked, its replacement is empty: the autoscaler may not
// remove it. When the rotation is over, it may remove any Node.
func TestReplacementsAreProtectedFromTheAutoscaler(t *testing.T) {
	t.Parallel()
	const name, size = "rotating", 3
	watchOperator(t)
	createPool(t, name, size)
	before := untilRunning(t, name, size)
	env.BlockDrains(t, name)
	// Instances that were created in this second are outdated too.
	patchPool(t, name, fmt.Sprintf(`{"spec":{"rotation":{"after":%q}}}`, time.Now().Add(time.Second).UTC().Format(time.RFC3339)))
	blocked := func(ctx context.Context) error { return protectsReplacements(ctx, name, before) }
	testcluster.Eventually(t, timeout, "the Node of a replacement is protected while a drain is blocked", blocked)
	untilResynced(t)
	require.NoError(t, blocked(t.Context()), "it stays protected")

	env.UnblockDrains(t, name)
	testcluster.Eventually(t, timeout, "all are replaced, and no Node is protected any more", func(ctx context.Context) error {
		found, err := running(ctx, name, size)
		if err != nil {
			return err
		}
		if len(before.without(found.ids()...)) != size {
			return fmt.Errorf("instances %v are from before", found.ids())
		}
		nodes, err := env.Nodes(ctx, name)
		for _, node := range nodes {
			if isProtected(&node) {
				err = errors.Join(err, fmt.Errorf("Node %s has the annotations %v", node.Name, node.Annotations))
			}
		}
		return err
	})
}

// isProtected reports whether a Node has an annotation that protects it, or shows that it was.
func isProtected(node *corev1.Node) bool {
	_, disabled := node.Annotations[scaleDownDisabled]
	_, ours := node.Annotations[v1beta1.AnnotationScaleDownDisabled]
	return disabled || ours
}

// protectsReplacements succeeds if a drain of a pool is blocked, every Node that is not from before is protected
// and there is one, and no Node from before is.
func protectsReplacements(ctx context.Context, name string, before instances) error {
	nodes, err := env.Nodes(ctx, name)
	if err != nil {
		return err
	}
	draining, replacements := 0, 0
	for _, node := range nodes {
		old := slices.Contains(before.ids(), node.Name)
		if isProtected(&node) == old {
			return fmt.Errorf("Node %s is from before: %t, annotations %v", node.Name, old, node.Annotations)
		}
		switch {
		case !old:
			replacements++
		case node.Spec.Unschedulable:
			draining++
		}
	}
	if draining == 0 || replacements == 0 || len(before) != len(nodes)-replacements {
		return fmt.Errorf("%d of %d Nodes drain, and %d replacements have Nodes", draining, len(nodes), replacements)
	}
	return nil
}
