// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// Indexes of Nodes.
const (
	// byGroup indexes Nodes by the text of the group's key.
	byGroup = "group"
	// byType indexes Nodes by the name of the instance type.
	byType = "type"
	// byTypeMarket indexes Nodes by typeMarket.
	byTypeMarket = "typeMarket"
	// bySubnet indexes Nodes by subnet.
	bySubnet = "subnet"
)

// typeMarket returns the key of a type in a market, as in the option quota.
func typeMarket(typeName, market string) string { return typeName + "/" + market }

// newNodeInformer returns an informer for the Nodes of one shard.
func newNodeInformer(client NodeClient, shard provider.Shard) (cache.SharedIndexInformer, error) {
	ours := labels.Set{LabelManaged: managed, LabelClusterID: shard.ClusterID, LabelShard: shard.ID}.String()
	lists := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = ours
			return client.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = ours
			return client.Watch(ctx, options)
		},
	}
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lists, client), &corev1.Node{}, 0,
		cache.Indexers{
			byGroup: func(obj any) ([]string, error) {
				return []string{groupOf(obj.(*corev1.Node)).String()}, nil
			},
			byType: func(obj any) ([]string, error) {
				return []string{obj.(*corev1.Node).Labels[corev1.LabelInstanceTypeStable]}, nil
			},
			byTypeMarket: func(obj any) ([]string, error) {
				node := obj.(*corev1.Node)
				return []string{typeMarket(node.Labels[corev1.LabelInstanceTypeStable], marketOf(node))}, nil
			},
			bySubnet: func(obj any) ([]string, error) {
				return []string{obj.(*corev1.Node).Labels[LabelSubnet]}, nil
			},
		})
	if err := informer.SetTransform(strip); err != nil {
		return nil, fmt.Errorf("prepare to follow the Nodes of shard %s: %w", shard.ID, err)
	}
	return informer, nil
}

// strip removes the fields of a Node that are not part of an instance, to save memory: above
// all the status, which kwok renews.
func strip(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	var annotations map[string]string
	for _, name := range []string{AnnotationProviderStatus, AnnotationIdempotencyKey, AnnotationInfraConfigHash} {
		if value, found := node.Annotations[name]; found {
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[name] = value
		}
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

// handler removes the requests that a Node shows to be carried out, and reports changes.
func (p *Provider) handler(changed func(instance.GroupKey)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			node := obj.(*corev1.Node)
			p.removeAbsent(node.Name)
			p.forget(node.Name, func(r request) bool { return !r.delete })
			changed(groupOf(node))
		},
		UpdateFunc: func(oldObj, newObj any) {
			before, after := oldObj.(*corev1.Node), newObj.(*corev1.Node)
			// A heartbeat changes nothing that strip has left.
			if fromNode(before).Equal(fromNode(after)) {
				return
			}
			if group := groupOf(before); group != groupOf(after) {
				changed(group)
			}
			changed(groupOf(after))
		},
		DeleteFunc: func(obj any) {
			delay := time.Duration(0)
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				// The list does not contain the Node, and no event has reported its deletion.
				obj, delay = tombstone.Obj, listDelay
			}
			node, ok := obj.(*corev1.Node)
			if !ok {
				return
			}
			p.addAbsent(node, delay)
		},
	}
}

// forget removes the request for id if it matches.
func (p *Provider) forget(id string, match func(request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if request, requested := p.requests[id]; requested && match(request) {
		delete(p.requests, id)
	}
}

// node returns the Node of an instance from the cache.
func (p *Provider) node(id string) (*corev1.Node, bool) {
	obj, found, _ := p.nodes.GetIndexer().GetByKey(id)
	if !found {
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
		// Every value of an index has at least one Node.
		if nodes := p.nodesBy(byGroup, value); len(nodes) > 0 {
			groups[groupOf(nodes[0])] = struct{}{}
		}
	}
	return groups
}

// nodesBy returns the Nodes that have value in an index of the cache.
func (p *Provider) nodesBy(index, value string) []*corev1.Node {
	// The only error is that the index does not exist.
	objs, _ := p.nodes.GetIndexer().ByIndex(index, value)
	nodes := make([]*corev1.Node, len(objs))
	for i, obj := range objs {
		nodes[i] = obj.(*corev1.Node)
	}
	return nodes
}
