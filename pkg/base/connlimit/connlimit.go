// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package connlimit limits the connections of a listener.
package connlimit

import (
	"net"
	"net/netip"
	"sync"

	"golang.org/x/net/netutil"
)

// Total accepts at most limit connections at a time. Others wait in the
// queue of the operating system.
func Total(l net.Listener, limit int) net.Listener {
	return netutil.LimitListener(l, limit)
}

// PerAddress accepts at most limit connections of one client at a time, see clientAddress,
// and closes others at once.
func PerAddress(l net.Listener, limit int) net.Listener {
	return &addressListener{Listener: l, limit: limit, connections: map[string]int{}}
}

type addressListener struct {
	net.Listener
	limit int

	mu          sync.Mutex
	connections map[string]int
}

func (l *addressListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address := clientAddress(conn.RemoteAddr())
		if l.add(address) {
			return &addressConn{Conn: conn, release: sync.OnceFunc(func() { l.remove(address) })}, nil
		}
		_ = conn.Close()
	}
}

func (l *addressListener) add(address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.connections[address] >= l.limit {
		return false
	}
	l.connections[address]++
	return true
}

func (l *addressListener) remove(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.connections[address]--; l.connections[address] == 0 {
		delete(l.connections, address)
	}
}

type addressConn struct {
	net.Conn
	release func()
}

func (c *addressConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// clientAddress identifies a client by its address without the port. For IPv6 it returns the
// /64 network, because a host may use any address of its /64
// (https://www.rfc-editor.org/rfc/rfc4291#section-2.5.1).
// For an address that is not an IP address it returns the text.
func clientAddress(address net.Addr) string {
	parsed, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return address.String()
	}
	ip := parsed.Addr().Unmap().WithZone("")
	if ip.Is6() {
		// 64 bits are valid for every IPv6 address, so PrefixFrom succeeds.
		return netip.PrefixFrom(ip, 64).Masked().String()
	}
	return ip.String()
}
