// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gather

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
)

// inOtherCluster is why Nodes and Pods are not known if they are in a workload cluster whose
// kubeconfig was not given. Those of the management cluster are other ones.
const inOtherCluster = "the Nodes are in another cluster; name its kubeconfig with --workload-kubeconfig"

// readNodes reads Nodes, unless they are in another cluster.
func (g *Gatherer) readNodes(ctx context.Context, read func(context.Context) objects.Read[corev1.Node]) objects.Read[corev1.Node] {
	if !g.separate && g.hasWorkloadCluster(ctx) {
		return objects.Unread[corev1.Node](inOtherCluster)
	}
	return read(ctx)
}

// hasWorkloadCluster reports whether an NstanceCluster says that its Nodes are in another
// cluster. If that cannot be read, a Node that is found is one all the same.
func (g *Gatherer) hasWorkloadCluster(ctx context.Context) bool {
	clusters := g.clusters(ctx)
	for _, cluster := range clusters.Items {
		if meta.FindStatusCondition(cluster.Status.Conditions, v1beta1.ConditionWorkloadClusterReachable) != nil {
			return true
		}
	}
	return false
}

// node returns a function that reads one Node.
func (g *Gatherer) node(name string) func(context.Context) objects.Read[corev1.Node] {
	return func(ctx context.Context) objects.Read[corev1.Node] {
		node, err := g.nodes.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return one("nodes", node, err)
	}
}
