// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package podroutes

import (
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Two programs with the same seed get different ranges. A range is free again after Close.
func TestClaim(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	first, err := Claim("seed")
	require.NoError(t, err)
	second, err := Claim("seed")
	require.NoError(t, err)
	assert.NotEqual(t, first.String(), second.String())
	require.NoError(t, first.Close())
	again, err := Claim("seed")
	require.NoError(t, err)
	assert.Equal(t, first.String(), again.String())
	require.NoError(t, again.Close())
	require.NoError(t, second.Close())
}

// A claim removes the routes that a killed program has left in the range. A route of other
// software is left alone, and the range is not used.
func TestClaimWithRoutes(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	n, err := Claim("seed")
	require.NoError(t, err)
	require.NoError(t, n.Close())
	loopback, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	inside := &net.IPNet{IP: append(net.IP{}, n.cidr.IP.To4()...), Mask: net.CIDRMask(24, 32)}
	inside.IP[2] = 7

	left := &netlink.Route{Dst: inside, LinkIndex: loopback.Attrs().Index, Protocol: protocol}
	err = netlink.RouteAdd(left)
	if errors.Is(err, unix.EPERM) {
		t.Skip("this user may not administer the network")
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = deleteRoute(left) })
	again, err := Claim("seed")
	require.NoError(t, err)
	assert.Equal(t, n.String(), again.String())
	assert.Zero(t, routesTo(t, inside), "routes that were left")
	require.NoError(t, again.Close())

	other := &netlink.Route{Dst: inside, LinkIndex: loopback.Attrs().Index}
	require.NoError(t, netlink.RouteAdd(other))
	t.Cleanup(func() { _ = deleteRoute(other) })
	next, err := Claim("seed")
	require.NoError(t, err)
	assert.NotEqual(t, n.String(), next.String())
	assert.Equal(t, 1, routesTo(t, inside), "routes of other software")
	require.NoError(t, next.Close())
}

func routesTo(t *testing.T, destination *net.IPNet) int {
	t.Helper()
	list, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: destination}, netlink.RT_FILTER_DST)
	require.NoError(t, err)
	return len(list)
}

// The address for the DNS of the cluster can be used until the range is released, even after a
// program with this address was killed.
func TestDNSAddress(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	n, err := Claim("seed")
	require.NoError(t, err)
	err = n.AddDNSAddress()
	if errors.Is(err, unix.EPERM) {
		t.Skip("this user may not administer the network")
	}
	require.NoError(t, err)
	require.NoError(t, n.lock.Close()) // as when the program is killed
	again, err := Claim("seed")
	require.NoError(t, err)
	require.Equal(t, n.String(), again.String())
	require.NoError(t, again.AddDNSAddress())
	connection, err := net.ListenUDP("udp", &net.UDPAddr{IP: again.DNSAddress()})
	require.NoError(t, err)
	require.NoError(t, connection.Close())

	require.NoError(t, again.Close())
	_, err = net.ListenUDP("udp", &net.UDPAddr{IP: again.DNSAddress()})
	require.ErrorIs(t, err, unix.EADDRNOTAVAIL)
}
