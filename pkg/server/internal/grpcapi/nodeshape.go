// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	corev1 "k8s.io/api/core/v1"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// newNodeShape returns the known properties of a Node, or nil if node is nil.
func newNodeShape(node *corev1.Node) *nstancev1.NodeShape {
	if node == nil {
		return nil
	}
	shape := &nstancev1.NodeShape{
		Architecture:    node.Status.NodeInfo.Architecture,
		OperatingSystem: node.Status.NodeInfo.OperatingSystem,
		Capacity:        make(map[string]string, len(node.Status.Capacity)),
		Labels:          node.Labels,
	}
	for name, quantity := range node.Status.Capacity {
		shape.Capacity[string(name)] = quantity.String()
	}
	for _, taint := range node.Spec.Taints {
		shape.Taints = append(shape.Taints, &nstancev1.NodeTaint{Key: taint.Key, Value: taint.Value, Effect: string(taint.Effect)})
	}
	return shape
}
