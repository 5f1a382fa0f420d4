// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gather

import (
	"context"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/drainnote"
	"nstance.dev/operator/pkg/plugin/drains"
	"nstance.dev/operator/pkg/plugin/objects"
)

// maxConcurrent is the number of requests for the Pods of Nodes at a time.
const maxConcurrent = 8

// Drains reads what "kubectl nstance drain-status" shows, of one Node or with an empty name
// of all. The error is a NotFoundError if there is no such Node.
func (g *Gatherer) Drains(ctx context.Context, node string) (*objects.Snapshot, error) {
	s := &objects.Snapshot{Namespace: g.namespace}
	read := g.allNodes
	if node != "" {
		read = g.node(node)
	}
	var reads sync.WaitGroup
	reads.Go(func() { s.ShardGroups = g.shardGroups(ctx, "") })
	reads.Go(func() { s.NstanceMachines = g.nstanceMachines(ctx, "") })
	reads.Go(func() { s.Machines = g.machines(ctx, "") })
	reads.Go(func() { g.readNodes(ctx, s, read) })
	reads.Wait()
	if node != "" && s.Nodes.Unknown == "" && len(s.Nodes.Items) == 0 {
		return nil, &NotFoundError{Kind: "Node", Name: node}
	}
	g.readDrains(ctx, s)
	return s, nil
}

// readDrains reads the Pods, their budgets, the volumes and the events of the Nodes that are
// being drained, and nothing if there are none.
func (g *Gatherer) readDrains(ctx context.Context, s *objects.Snapshot) {
	nodes := drains.Nodes(s)
	if len(nodes) == 0 {
		return
	}
	var reads sync.WaitGroup
	reads.Go(func() { s.Attachments = g.attachments(ctx) })
	reads.Go(func() {
		selector := func(reason string) string { return "regarding.kind=Node,reason=" + reason }
		s.NodeEvents = merge(events(ctx, g.nodes, metav1.NamespaceDefault, selector(drainnote.Reason)),
			events(ctx, g.nodes, metav1.NamespaceDefault, selector(v1beta1.ReasonDrainBlocked)))
	})
	reads.Go(func() {
		s.Pods = each(nodes, func(node string) objects.Read[corev1.Pod] { return g.podsOn(ctx, node) })
		s.Budgets = each(namespaces(s.Pods), func(namespace string) objects.Read[policyv1.PodDisruptionBudget] {
			return g.budgetsIn(ctx, namespace)
		})
	})
	reads.Wait()
}

// namespaces returns the namespaces of Pods, sorted.
func namespaces(pods map[string]objects.Read[corev1.Pod]) []string {
	found := map[string]bool{}
	for _, read := range pods {
		for i := range read.Items {
			found[read.Items[i].Namespace] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// each calls a function for each key, for some at a time.
func each[T any](keys []string, read func(key string) objects.Read[T]) map[string]objects.Read[T] {
	results := make([]objects.Read[T], len(keys))
	slots := make(chan struct{}, maxConcurrent)
	var calls sync.WaitGroup
	for i, key := range keys {
		slots <- struct{}{}
		calls.Go(func() {
			defer func() { <-slots }()
			results[i] = read(key)
		})
	}
	calls.Wait()
	byKey := make(map[string]objects.Read[T], len(keys))
	for i, key := range keys {
		byKey[key] = results[i]
	}
	return byKey
}
