// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// byMark finds Nodes by the instance that they are cordoned for, and by its shard
// alone.
const byMark = "cordonedFor"

var nodeIndexers = cache.Indexers{byMark: func(obj any) ([]string, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil, nil
	}
	if key, ok := markOf(node); ok {
		return []string{mark(key), key.Namespace}, nil
	}
	return nil, nil
}}

// markedFor are the Nodes in the cache that were cordoned for key.
func (c *Controller) markedFor(key cache.ObjectName) []*corev1.Node {
	return controller.Indexed[corev1.Node](c.nodeIndex, byMark, mark(key))
}

// unreachable tells whether the Node has not been heard of for so long that it
// cannot tell of the end of its Pods.
func unreachable(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionUnknown
		}
	}
	return false
}

// applyCordon makes a Node unschedulable and marks it, as long as it is what the
// cache shows: one that somebody has cordoned meanwhile gets no mark. Who cordons it
// later owns the field, too, and it stays when the operator gives it up.
func (c *Controller) applyCordon(ctx context.Context, node *corev1.Node, mark string) error {
	return c.apply(ctx, node, corev1ac.Node(node.Name).
		WithUID(node.UID).
		WithResourceVersion(node.ResourceVersion).
		WithAnnotations(map[string]string{v1beta1.AnnotationCordonedFor: mark}).
		WithSpec(corev1ac.NodeSpec().WithUnschedulable(true)))
}

// applyUncordon takes back what applyCordon has set, and nothing else.
func (c *Controller) applyUncordon(ctx context.Context, node *corev1.Node) error {
	return c.apply(ctx, node, corev1ac.Node(node.Name).WithUID(node.UID))
}

func (c *Controller) apply(ctx context.Context, node *corev1.Node, wanted *corev1ac.NodeApplyConfiguration) error {
	written, err := c.client.CoreV1().Nodes().Apply(ctx, wanted, controller.Apply)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("apply the cordon of Node %s: %w", node.Name, err)
	}
	c.writes.Wrote(written)
	return nil
}
