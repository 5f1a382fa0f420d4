// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// listDelay delays the lookups after a list that leaves out Nodes, so that the number of
// missing Nodes is known before the first of them counts as missing.
const listDelay = time.Second

var _ provider.Expecter = (*Provider)(nil)

// absence is an instance whose Node is not, or no longer, in the cache. The Node is looked up
// by name. The cache contains only Nodes with the labels of the shard: if a Node loses a
// label, it leaves the cache, although its Pods still run.
type absence struct {
	vm instance.VM
	// uid is the UID of the Node. It is empty if the Node is known only from a record.
	uid types.UID
	// reported is set once a Node without the labels was reported.
	reported bool
}

// isOf reports whether node is the Node of the instance, and no other Node of its name.
func (a absence) isOf(node *corev1.Node) bool {
	if a.uid != "" {
		return node.UID == a.uid
	}
	return node.Spec.ProviderID == a.vm.ProviderID
}

// Expect adds the instances with a provider id. They count as running until their Nodes are
// in the cache, or are confirmed to be missing, because nothing else is known.
func (p *Provider) Expect(instances []instance.VM) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, vm := range instances {
		if _, known := p.vm(vm.ID); known || vm.ProviderID == "" {
			continue
		}
		vm.State, vm.Expected, vm.Unlisted = instance.Running, true, true
		p.absent[vm.ID] = absence{vm: vm}
		p.queue.Add(vm.ID)
	}
}

// addAbsent starts looking up a Node that has left the cache, after a delay.
func (p *Provider) addAbsent(node *corev1.Node, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	vm := fromNode(node)
	vm.Unlisted = true
	p.absent[node.Name] = absence{vm: vm, uid: node.UID}
	p.queue.AddAfter(node.Name, delay)
}

// removeAbsent stops looking up a Node that has appeared in the cache.
func (p *Provider) removeAbsent(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.absent, id)
}

// confirm looks up the Node of an instance by name, if it is not in the cache. It returns
// true if the Node does not exist. Then the instance was deleted, and its request is done.
func (p *Provider) confirm(ctx context.Context, id string, changed func(instance.GroupKey), failed provider.FailureFunc) (deleted bool, err error) {
	p.mu.Lock()
	absent, found := p.absent[id]
	p.mu.Unlock()
	if !found {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	node, err := p.config.Client.Get(ctx, id, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("look for Node %s: %w", id, err)
	}
	if err != nil || !absent.isOf(node) {
		if p.drop(id, absent) {
			changed(absent.vm.Group)
			return true, nil
		}
		return false, nil
	}
	next := absence{vm: absent.vm, uid: node.UID, reported: absent.reported || !p.hasLabels(node)}
	next.vm.ProviderID, next.vm.State, next.vm.Expected, next.vm.Unlisted = node.Spec.ProviderID, stateOf(node), false, false
	if !p.keep(id, absent, next) {
		return false, nil
	}
	if next.reported && !absent.reported {
		err := fmt.Errorf("the Node of instance %s has lost labels by which shard %s lists its Nodes: it is looked for by name", id, p.config.Shard.ID)
		klog.FromContext(ctx).Error(err, "A Node has lost its labels", "instance", id, "labels", node.Labels)
		failed(next.vm.Group, id, err)
	}
	if absent.vm.Expected || !next.vm.Equal(absent.vm) {
		changed(next.vm.Group)
	}
	p.queue.AddAfter(id, confirmTimeout)
	return false, nil
}

// drop removes an instance whose Node does not exist, and its request. It returns false if
// the Node is in the cache by now, or if another Node of that name has left the cache.
func (p *Provider) drop(id string, absent absence) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now, found := p.absent[id]; !found || now.uid != absent.uid {
		return false
	}
	delete(p.absent, id)
	delete(p.requests, id)
	return true
}

// keep stores the state of an instance whose Node exists. It returns false in the same cases
// as drop.
func (p *Provider) keep(id string, absent, next absence) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now, found := p.absent[id]; !found || now.uid != absent.uid {
		return false
	}
	p.absent[id] = next
	return true
}
