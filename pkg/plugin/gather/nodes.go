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

// readNodes reads Nodes, unless they are in another cluster. If that is not known, a Node
// that is found is one all the same.
func (g *Gatherer) readNodes(ctx context.Context, s *objects.Snapshot, read func(context.Context) objects.Read[corev1.Node]) {
	if !g.separate {
		s.Clusters = g.clusters(ctx)
	}
	if hasWorkloadCluster(s.Clusters.Items) {
		s.Nodes = objects.Unread[corev1.Node](inOtherCluster)
		return
	}
	s.Nodes = read(ctx)
}

// hasWorkloadCluster reports whether an NstanceCluster says that its Nodes are in another
// cluster.
func hasWorkloadCluster(clusters []v1beta1.NstanceCluster) bool {
	for _, cluster := range clusters {
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
