// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package podroutes

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// protocol marks the routes of this package, so that those of a program that was killed
// are recognized.
const protocol netlink.RouteProtocol = 0xa5

// Networks for Pods are 10.N.0.0/16. That of the dev cluster is the usual one; tests choose
// another.
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
	// removeAddress removes what AddDNSAddress has added; nil if it has not.
	removeAddress func() error
}

// String returns the range, such as "10.244.0.0/16".
func (n *Network) String() string { return n.cidr.String() }

// AddDNSAddress gives this machine the address at which Pods reach the DNS of the cluster. It
// is in the range of the last Node that the range has room for, which does not exist. Close
// removes it.
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

// claim claims a range, and removes the routes that a program has left there which was
// killed.
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
