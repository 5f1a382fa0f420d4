// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package objects

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/providerid"
)

// Nodes finds Nodes by provider id.
type Nodes struct{ byKey map[string][]*corev1.Node }

// IndexNodes returns the Nodes of a snapshot by provider id.
func (s *Snapshot) IndexNodes() Nodes {
	byKey := make(map[string][]*corev1.Node, len(s.Nodes.Items))
	for i := range s.Nodes.Items {
		node := &s.Nodes.Items[i]
		if key := providerid.Key(node.Spec.ProviderID); key != "" {
			byKey[key] = append(byKey[key], node)
		}
	}
	return Nodes{byKey}
}

// WithProviderID returns the Nodes of an instance: one, none, or by mistake several.
func (n Nodes) WithProviderID(id string) []*corev1.Node {
	var found []*corev1.Node
	for _, node := range n.byKey[providerid.Key(id)] {
		if providerid.Match(id, node.Spec.ProviderID) {
			found = append(found, node)
		}
	}
	return found
}

// Node returns a Node by name, nil if the snapshot has none.
func (s *Snapshot) Node(name string) *corev1.Node {
	for i := range s.Nodes.Items {
		if s.Nodes.Items[i].Name == name {
			return &s.Nodes.Items[i]
		}
	}
	return nil
}

// Readiness returns the status of the condition Ready of a Node, and since when it has it.
func Readiness(node *corev1.Node) (status corev1.ConditionStatus, since time.Time) {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status, condition.LastTransitionTime.Time
		}
	}
	return corev1.ConditionUnknown, time.Time{}
}

// CordonedFor returns shard and instance of the drain that a Node was cordoned for, and
// whether the operator has cordoned it.
func CordonedFor(node *corev1.Node) (shard, instance string, ok bool) {
	shard, instance, ok = strings.Cut(node.Annotations[v1beta1.AnnotationCordonedFor], "/")
	return shard, instance, ok && shard != "" && instance != ""
}
