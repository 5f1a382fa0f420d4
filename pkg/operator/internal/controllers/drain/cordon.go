// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// unreachable reports whether the kubelet of a Node has not reported for so long
// that it cannot confirm the deletion of Pods.
func unreachable(node *corev1.Node) bool {
	return controllers.ReadyCondition(node).Status == corev1.ConditionUnknown
}

// applyCordon makes a Node unschedulable and annotates it with the drain, if the
// Node has not changed since the cache saw it: a Node that another client has
// cordoned in the meantime gets no annotation. A client that cordons the Node later
// becomes a second owner of the field, and its cordon stays when the operator removes its own.
func (c *Controller) applyCordon(ctx context.Context, node *corev1.Node, key Key) error {
	_, err := c.applyNode(ctx, node, corev1ac.Node(node.Name).
		WithUID(node.UID).
		WithResourceVersion(node.ResourceVersion).
		WithAnnotations(map[string]string{v1beta1.AnnotationCordonedFor: key.String()}).
		WithSpec(corev1ac.NodeSpec().WithUnschedulable(true)))
	return err
}

// uncordon removes the fields that applyCordon has set, and reports whether the Node is
// schedulable then. A cordon that another client owns too stays. The annotation does not:
// it would have the Node uncordoned for ever.
func (c *Controller) uncordon(ctx context.Context, node *corev1.Node) (schedulable bool, err error) {
	written, err := c.applyNode(ctx, node, corev1ac.Node(node.Name).WithUID(node.UID))
	if err != nil || written == nil {
		return false, err
	}
	if value, left := written.Annotations[v1beta1.AnnotationCordonedFor]; left {
		return !written.Spec.Unschedulable, c.removeAnnotation(ctx, written, value)
	}
	return !written.Spec.Unschedulable, nil
}

// removeAnnotation removes the annotation from a Node, also if another client owns it,
// unless it has another value meanwhile.
func (c *Controller) removeAnnotation(ctx context.Context, node *corev1.Node, value string) error {
	path := "/metadata/annotations/" + strings.ReplaceAll(v1beta1.AnnotationCordonedFor, "/", "~1")
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": node.UID},
		{"op": "test", "path": path, "value": value},
		{"op": "remove", "path": path},
	})
	if err != nil {
		return fmt.Errorf("encode the patch that removes the annotation of Node %s: %w", node.Name, err)
	}
	written, err := c.client.CoreV1().Nodes().Patch(ctx, node.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: controllers.FieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove annotation %s of Node %s: %w", v1beta1.AnnotationCordonedFor, node.Name, err)
	}
	c.writes.Record(written)
	return nil
}

// applyNode applies a configuration to a Node, and returns nil for a Node that does not
// exist.
func (c *Controller) applyNode(ctx context.Context, node *corev1.Node, configuration *corev1ac.NodeApplyConfiguration) (*corev1.Node, error) {
	written, err := c.client.CoreV1().Nodes().Apply(ctx, configuration, controllers.Apply)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("apply the cordon of Node %s: %w", node.Name, err)
	}
	c.writes.Record(written)
	return written, nil
}
