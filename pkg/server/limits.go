// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

// Limits of clients (docs/server.md#limits).
const (
	// maxOperatorConnections is the maximum number of connections of operators. Further
	// ones wait. An operator has one connection for each of its processes that leads.
	maxOperatorConnections = 4096
	// maxOperatorStreams is the maximum number of calls in progress on one connection.
	// An operator has three watches and at most some hundred calls at a time.
	maxOperatorStreams = 1000
	// maxOperatorRequest is the maximum size of a request, in bytes.
	maxOperatorRequest = 4 << 20

	// maxAgentConnections is the maximum number of connections of agents, each of which
	// has one. Further ones wait.
	maxAgentConnections = 16384
	// maxAgentStreams is the maximum number of calls in progress on one connection. An
	// agent has three streams and few calls.
	maxAgentStreams = 16
	// maxAgentRequest is the maximum size of a report or of public keys, in bytes.
	maxAgentRequest = 256 << 10

	// maxRegistrationConnections is the maximum number of connections of clients
	// without a certificate, and maxRegistrationsPerAddress that of one address.
	maxRegistrationConnections = 256
	maxRegistrationsPerAddress = 32
	// maxRegistrationStreams is the maximum number of calls in progress on one.
	maxRegistrationStreams = 16
	// maxRegistrationRequest is the maximum size of a nonce with a key, in bytes.
	maxRegistrationRequest = 64 << 10
	// A registration takes one call: its connection is closed when it is idle for
	// maxRegistrationIdle, and in any case after maxRegistrationAge. Calls in progress
	// then have registrationGrace.
	maxRegistrationIdle = 30 * time.Second
	maxRegistrationAge  = 2 * time.Minute
	registrationGrace   = 30 * time.Second

	// maxHeaders is the maximum size of the metadata of a call, in bytes.
	maxHeaders = 16 << 10
)

// limitConnections accepts at most limit connections at a time. Others wait in the
// queue of the operating system.
func limitConnections(l net.Listener, limit int) net.Listener {
	return netutil.LimitListener(l, limit)
}

// limitPerAddress accepts at most limit connections of one address at a time, and
// closes others at once. An IPv6 address stands for its network of 64 bits, which
// belongs to one client.
func limitPerAddress(l net.Listener, limit int) net.Listener {
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

// clientAddress returns the address without the port, or the text of an address that is
// not of the Internet protocol.
func clientAddress(address net.Addr) string {
	parsed, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return address.String()
	}
	ip := parsed.Addr().Unmap().WithZone("")
	if ip.Is6() {
		// The number of bits is valid for every IPv6 address.
		return netip.PrefixFrom(ip, 64).Masked().String()
	}
	return ip.String()
}
