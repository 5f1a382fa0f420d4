// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gather

import (
	"context"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/plugin/objects"
)

// Why reads what "kubectl nstance why" explains: the instance of a Node, or of an
// NstanceMachine that has this name or instance id.
func (g *Gatherer) Why(ctx context.Context, name string) (*objects.Snapshot, error) {
	s := &objects.Snapshot{Namespace: g.namespace}
	var reads sync.WaitGroup
	reads.Go(func() { s.Pools = g.pools(ctx) })
	reads.Go(func() { s.MachinePools = g.machinePools(ctx) })
	reads.Go(func() { s.ShardGroups = g.shardGroups(ctx, "") })
	reads.Go(func() { s.NstanceMachines = g.nstanceMachines(ctx, "") })
	reads.Go(func() { s.Machines = g.machines(ctx, "") })
	reads.Go(func() { g.readNodes(ctx, s, g.node(name)) })
	reads.Wait()
	subject := s.Locate(name)
	if !subject.Found() && s.Nodes.Unknown == "" && s.NstanceMachines.Unknown == "" {
		return nil, &NotFoundError{Kind: "Node or NstanceMachine", Namespace: g.namespace, Name: name}
	}
	if id := subject.ProviderID(); subject.Node == nil && s.Nodes.Unknown == "" && id != "" {
		// The Node has another name than its NstanceMachine.
		s.Nodes = g.allNodes(ctx)
		s.Nodes.Items = slices.DeleteFunc(s.Nodes.Items, func(node corev1.Node) bool {
			return !providerid.Match(id, node.Spec.ProviderID)
		})
		subject = s.Locate(name)
	}
	g.readDrains(ctx, s)
	if node := subject.Node; node != nil {
		s.NodeEvents = events(ctx, g.nodes, metav1.NamespaceDefault, "regarding.kind=Node,regarding.name="+node.Name)
	}
	if pool := subject.Pool; pool != nil {
		s.PoolEvents = events(ctx, g.kube, pool.Namespace, "regarding.kind="+v1beta1.PoolKind+",regarding.name="+pool.Name)
	}
	g.readRequestingPod(ctx, s, subject)
	return s, nil
}

// readRequestingPod reads the Pod for which an instance was created.
func (g *Gatherer) readRequestingPod(ctx context.Context, s *objects.Snapshot, subject objects.Subject) {
	pod, ok := subject.RequestedBy()
	if !ok {
		return
	}
	s.Requesting = map[types.NamespacedName]objects.Read[corev1.Pod]{}
	if !g.separate && s.Nodes.Unknown == inOtherCluster {
		s.Requesting[pod] = objects.Unread[corev1.Pod](inOtherCluster)
		return
	}
	found, err := g.nodes.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	s.Requesting[pod] = one("pods", found, err)
}
