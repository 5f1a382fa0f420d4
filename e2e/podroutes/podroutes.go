// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package podroutes makes the Pods of nodes that are containers reachable: from this machine
// and, because it routes for the containers, from each other.
package podroutes

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
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

// set adds or changes the route of a Node that has an address and a range of Pods.
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

// protocol marks the routes of this package, so that routes that a killed program has left are
// recognized.
const protocol netlink.RouteProtocol = 0xa5

// Networks for Pods are 10.N.0.0/16. The dev cluster has the usual 10.244.0.0/16; tests choose
// another N.
const (
	devNetwork   = 244
	firstNetwork = 200
	networkCount = 40
)

// Network is a range of addresses for Pods that no other cluster on this machine uses.
type Network struct {
	cidr *net.IPNet
	// lock is released by the kernel when the program exits.
	lock *os.File
	// removeAddress removes the address that AddDNSAddress has added; nil if it was not called.
	removeAddress func() error
}

// String returns the range, such as "10.244.0.0/16".
func (n *Network) String() string { return n.cidr.String() }

// AddDNSAddress gives this machine the address at which Pods reach the DNS of the cluster. It is
// in the part of the last Node that the range has room for, because no cluster has so many Nodes.
// Close removes it.
func (n *Network) AddDNSAddress() error {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback interface: %w", err)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: n.DNSAddress(), Mask: net.CIDRMask(32, 32)}}
	// A program that was killed has left it.
	if err := netlink.AddrReplace(loopback, address); err != nil {
		return fmt.Errorf("add the address %s: %w", address, err)
	}
	n.removeAddress = func() error { return netlink.AddrDel(loopback, address) }
	return nil
}

// DNSAddress is where Pods reach the DNS of the cluster.
func (n *Network) DNSAddress() net.IP {
	first := n.cidr.IP.To4()
	return net.IPv4(first[0], first[1], 255, 254)
}

// ClaimDefault claims 10.244.0.0/16.
func ClaimDefault() (*Network, error) { return claim(devNetwork) }

// Claim claims any other range. Programs with the same seed prefer the same.
func Claim(seed string) (*Network, error) {
	digest := fnv.New32a()
	_, _ = digest.Write([]byte(seed))
	preferred := int(digest.Sum32() % networkCount)
	var errs []error
	for i := range networkCount {
		n, err := claim(firstNetwork + (preferred+i)%networkCount)
		if err == nil {
			return n, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("find a range of addresses for Pods: %w", errors.Join(errs...))
}

// claim claims a range, and removes the routes that a killed program has left there.
func claim(number int) (*Network, error) {
	n := &Network{cidr: &net.IPNet{IP: net.IPv4(10, byte(number), 0, 0), Mask: net.CIDRMask(16, 32)}}
	path := filepath.Join(os.TempDir(), fmt.Sprintf("nstance-pods-%d.lock", number))
	var err error
	if n.lock, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("lock the range %s: %w", n, err)
	}
	if err := unix.Flock(int(n.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("range %s is used by another cluster on this machine (%s): %w", n, path, err), n.Close())
	}
	if err := n.clear(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// clear removes the routes of this package in the range. Any other route is an error.
func (n *Network) clear() error {
	list, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list the routes of this machine: %w", err)
	}
	for _, route := range list {
		switch {
		case route.Dst == nil || route.Dst.IP.IsUnspecified(), !n.overlaps(route.Dst):
		case route.Protocol != protocol:
			return fmt.Errorf("range %s overlaps with the route to %s of this machine", n, route.Dst)
		default:
			if err := deleteRoute(&route); err != nil {
				return fmt.Errorf("delete the route to %s: %w", route.Dst, err)
			}
		}
	}
	return nil
}

func (n *Network) overlaps(other *net.IPNet) bool {
	return n.cidr.Contains(other.IP) || other.Contains(n.cidr.IP)
}

// Close releases the range.
func (n *Network) Close() error {
	if n == nil {
		return nil
	}
	var err error
	if n.removeAddress != nil {
		err = n.removeAddress()
	}
	return errors.Join(err, n.lock.Close())
}
