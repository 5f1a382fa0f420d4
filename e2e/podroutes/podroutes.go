// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package podroutes makes the Pods of nodes that are containers reachable: from this machine
// and, because it routes for the containers, from each other.
package podroutes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Run keeps a route to the Pods of each Node until ctx is done, and removes them. It needs
// the right to administer the network.
func Run(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	nodes := factory.Core().V1().Nodes().Informer()
	r := &routes{byNode: map[string]*netlink.Route{}}
	_, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { r.set(ctx, object) },
		UpdateFunc: func(_, object any) { r.set(ctx, object) },
		DeleteFunc: func(object any) { r.remove(ctx, object) },
	})
	if err != nil {
		return fmt.Errorf("follow the Nodes: %w", err)
	}
	factory.StartWithContext(ctx)
	<-ctx.Done()
	factory.Shutdown()
	return r.removeAll()
}

type routes struct {
	mu     sync.Mutex
	byNode map[string]*netlink.Route
}

// set adds or changes the route of a Node that has both addresses.
func (r *routes) set(ctx context.Context, object any) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return
	}
	_, pods, err := net.ParseCIDR(node.Spec.PodCIDR)
	if err != nil {
		return // it has no range yet
	}
	route := &netlink.Route{Dst: pods, Protocol: protocol}
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			route.Gw = net.ParseIP(address.Address)
		}
	}
	if route.Gw == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if present := r.byNode[node.Name]; present != nil && present.Gw.Equal(route.Gw) && present.Dst.String() == route.Dst.String() {
		return
	}
	if err := netlink.RouteReplace(route); err != nil {
		klog.FromContext(ctx).Error(err, "Setting the route to the Pods of a Node failed", "node", node.Name, "pods", pods)
		return
	}
	r.byNode[node.Name] = route
}

// remove deletes the route of a Node.
func (r *routes) remove(ctx context.Context, object any) {
	if deleted, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = deleted.Obj
	}
	node, ok := object.(*corev1.Node)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if route := r.byNode[node.Name]; route != nil {
		delete(r.byNode, node.Name)
		if err := deleteRoute(route); err != nil {
			klog.FromContext(ctx).Error(err, "Deleting the route to the Pods of a Node failed", "node", node.Name)
		}
	}
}

func (r *routes) removeAll() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, route := range r.byNode {
		if err := deleteRoute(route); err != nil {
			return fmt.Errorf("delete the route to the Pods of Node %s: %w", name, err)
		}
	}
	return nil
}

// deleteRoute deletes a route. Another Node may have its range already.
func deleteRoute(route *netlink.Route) error {
	if err := netlink.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}
