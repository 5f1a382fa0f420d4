// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/server/provider"
)

// errForeignNode means that a Node is not that of the instance whose id is its name. Clients
// choose the ids of on-demand instances, so the name proves nothing.
var errForeignNode = errors.New("there is a Node of this name that belongs to another group, shard or cluster")

// find returns the Node of an instance from the API server. The error is errForeignNode if
// there is another Node of that name.
func (p *Provider) find(ctx context.Context, spec provider.Spec) (*corev1.Node, error) {
	node, err := p.config.Client.Get(ctx, spec.ID, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if !p.hasLabels(node) || groupOf(node) != spec.Group {
		return nil, errForeignNode
	}
	return node, nil
}

// hasLabels reports whether a Node has the labels by which the shard lists its Nodes.
func (p *Provider) hasLabels(node *corev1.Node) bool {
	labels := node.Labels
	return labels[LabelManaged] == managed && labels[LabelClusterID] == p.config.Shard.ClusterID && labels[LabelShard] == p.config.Shard.ID
}

// uidOf returns the UID of the Node of an instance.
func (p *Provider) uidOf(ctx context.Context, spec provider.Spec) (types.UID, error) {
	if node, found := p.node(spec.ID); found {
		return node.UID, nil
	}
	p.mu.Lock()
	absent, isAbsent := p.absent[spec.ID]
	p.mu.Unlock()
	if isAbsent && !absent.vm.Expected {
		return absent.uid, nil
	}
	node, err := p.find(ctx, spec)
	if err != nil {
		return "", fmt.Errorf("look for Node %s: %w", spec.ID, err)
	}
	return node.UID, nil
}

// settle removes the request to delete id when neither the API server nor the
// cache has its Node. Otherwise the event handler does when the Node is deleted.
func (p *Provider) settle(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, found := p.node(id); found {
		return false
	}
	delete(p.requests, id)
	delete(p.absent, id)
	return true
}
