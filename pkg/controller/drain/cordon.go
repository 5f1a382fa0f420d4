// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// unreachable reports whether the kubelet of a Node has not reported for so long
// that it cannot confirm the deletion of Pods.
func unreachable(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionUnknown
		}
	}
	return false
}

// applyCordon makes a Node unschedulable and annotates it with the drain, if the
// Node has not changed since the cache saw it: a Node that another client has
// cordoned in the meantime gets no annotation. A client that cordons the Node later
// becomes a second owner of the field, and its cordon stays when the operator removes its own.
func (c *Controller) applyCordon(ctx context.Context, node *corev1.Node, key Key) error {
	return c.applyNode(ctx, node, corev1ac.Node(node.Name).
		WithUID(node.UID).
		WithResourceVersion(node.ResourceVersion).
		WithAnnotations(map[string]string{v1beta1.AnnotationCordonedFor: key.String()}).
		WithSpec(corev1ac.NodeSpec().WithUnschedulable(true)))
}

// applyUncordon removes the fields that applyCordon has set, and no others.
func (c *Controller) applyUncordon(ctx context.Context, node *corev1.Node) error {
	return c.applyNode(ctx, node, corev1ac.Node(node.Name).WithUID(node.UID))
}

func (c *Controller) applyNode(ctx context.Context, node *corev1.Node, configuration *corev1ac.NodeApplyConfiguration) error {
	written, err := c.client.CoreV1().Nodes().Apply(ctx, configuration, controller.Apply)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("apply the cordon of Node %s: %w", node.Name, err)
	}
	c.writes.Record(written)
	return nil
}
