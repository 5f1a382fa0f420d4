// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/server/instance"
)

// Indexes of Nodes.
const (
	// byGroup is by the text of the group's key.
	byGroup = "group"
	// byType is by the name of the instance type.
	byType = "type"
	// bySubnet is by the subnet.
	bySubnet = "subnet"
)

// newNodeInformer follows the Nodes of one shard and of no other.
func newNodeInformer(client kubernetes.Interface, cluster, shard string) (cache.SharedIndexInformer, error) {
	ours := labels.Set{LabelManaged: managed, LabelClusterID: cluster, LabelShard: shard}.String()
	informer := coreinformers.NewFilteredNodeInformer(client, 0,
		cache.Indexers{
			byGroup: func(obj any) ([]string, error) {
				return []string{groupOf(obj.(*corev1.Node)).String()}, nil
			},
			byType: func(obj any) ([]string, error) {
				return []string{obj.(*corev1.Node).Labels[corev1.LabelInstanceTypeStable]}, nil
			},
			bySubnet: func(obj any) ([]string, error) {
				return []string{obj.(*corev1.Node).Labels[LabelSubnet]}, nil
			},
		},
		func(options *metav1.ListOptions) { options.LabelSelector = ours })
	if err := informer.SetTransform(strip); err != nil {
		return nil, fmt.Errorf("preparing to follow the Nodes of shard %s: %w", shard, err)
	}
	return informer, nil
}

// strip leaves of a Node what an instance is made of. The rest, above all the
// status that kwok renews, would only take memory.
func strip(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	var annotations map[string]string
	if status, told := node.Annotations[AnnotationProviderStatus]; told {
		annotations = map[string]string{AnnotationProviderStatus: status}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:              node.Name,
			UID:               node.UID,
			ResourceVersion:   node.ResourceVersion,
			Labels:            node.Labels,
			Annotations:       annotations,
			DeletionTimestamp: node.DeletionTimestamp,
		},
		Spec: corev1.NodeSpec{ProviderID: node.Spec.ProviderID},
	}, nil
}

// handler keeps the orders free of what the Nodes show, and tells of changes.
func (p *Provider) handler(changed func(instance.GroupKey)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			node := obj.(*corev1.Node)
			p.forget(node.Name, func(o order) bool { return !o.end })
			changed(groupOf(node))
		},
		UpdateFunc: func(oldObj, newObj any) {
			before, after := oldObj.(*corev1.Node), newObj.(*corev1.Node)
			// A heartbeat changes nothing of what strip has left.
			if fromNode(before) == fromNode(after) {
				return
			}
			if group := groupOf(before); group != groupOf(after) {
				changed(group)
			}
			changed(groupOf(after))
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			node, ok := obj.(*corev1.Node)
			if !ok {
				return
			}
			p.forget(node.Name, func(order) bool { return true })
			changed(groupOf(node))
		},
	}
}

// forget drops the order for id if it is as is says.
func (p *Provider) forget(id string, is func(order) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if order, ordered := p.orders[id]; ordered && is(order) {
		delete(p.orders, id)
	}
}

// node returns the Node of an instance from the cache.
func (p *Provider) node(id string) (*corev1.Node, bool) {
	obj, there, _ := p.nodes.GetIndexer().GetByKey(id)
	if !there {
		return nil, false
	}
	return obj.(*corev1.Node), true
}

// nodesOf returns the Nodes of a group from the cache.
func (p *Provider) nodesOf(group instance.GroupKey) []*corev1.Node {
	return p.nodesBy(byGroup, group.String())
}

// nodeGroups returns the groups of the Nodes in the cache.
func (p *Provider) nodeGroups() map[instance.GroupKey]struct{} {
	groups := map[instance.GroupKey]struct{}{}
	for _, value := range p.nodes.GetIndexer().ListIndexFuncValues(byGroup) {
		// An index value has at least one Node.
		if nodes := p.nodesBy(byGroup, value); len(nodes) > 0 {
			groups[groupOf(nodes[0])] = struct{}{}
		}
	}
	return groups
}

// nodesBy returns the Nodes that have value in an index of the cache.
func (p *Provider) nodesBy(index, value string) []*corev1.Node {
	// Fails only for an index that does not exist.
	objs, _ := p.nodes.GetIndexer().ByIndex(index, value)
	nodes := make([]*corev1.Node, len(objs))
	for i, obj := range objs {
		nodes[i] = obj.(*corev1.Node)
	}
	return nodes
}
