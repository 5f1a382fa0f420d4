// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/controller"
)

// byProviderID is the index of Nodes by the key of their provider id.
const byProviderID = "providerID"

// Nodes finds Nodes in the cache of an informer by their provider ids.
type Nodes struct {
	indexer cache.Indexer
}

// NewNodes indexes the Nodes of informer by provider id. Several controllers may
// share one informer: the index is added once.
func NewNodes(informer cache.SharedIndexInformer) (*Nodes, error) {
	if err := controller.IndexOnce(informer, byProviderID, indexByProviderID); err != nil {
		return nil, fmt.Errorf("index Nodes by provider id: %w", err)
	}
	return &Nodes{indexer: informer.GetIndexer()}, nil
}

// WithProviderID are the Nodes whose provider id names the same machine as id.
func (n *Nodes) WithProviderID(id string) []*corev1.Node {
	var nodes []*corev1.Node
	for _, node := range controller.Indexed[corev1.Node](n.indexer, byProviderID, providerid.Key(id)) {
		if providerid.Match(id, node.Spec.ProviderID) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// ReadyCondition returns the condition Ready of a Node, the zero value if it has none.
func ReadyCondition(node *corev1.Node) corev1.NodeCondition {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition
		}
	}
	return corev1.NodeCondition{}
}

func indexByProviderID(obj any) ([]string, error) {
	node, ok := obj.(*corev1.Node)
	if !ok || providerid.Key(node.Spec.ProviderID) == "" {
		return nil, nil
	}
	return []string{providerid.Key(node.Spec.ProviderID)}, nil
}
