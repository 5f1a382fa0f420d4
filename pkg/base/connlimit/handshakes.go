// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connlimit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Limits are the limits of a listener whose clients authenticate themselves in a handshake.
type Limits struct {
	// Pending is the maximum number of connections whose handshake has not finished, and
	// PendingPerAddress the maximum for an address.
	Pending, PendingPerAddress int
	// Authenticated is the maximum number of connections whose handshake has finished.
	Authenticated int
}

// Handshakes accepts every connection. If too many have not finished their handshake, it closes
// another one of them: a random one of the same address if the address has too many, otherwise one
// of the address with the most. So a host that connects and is silent does not keep others out,
// not even behind the same address, and hosts of many addresses are disturbed least.
//
// The connections are of type *Handshake. The server must call Finish after the handshake.
func Handshakes(l net.Listener, limits Limits) net.Listener {
	return &handshakeListener{Listener: l, limits: limits, pending: map[string][]*Handshake{}}
}

type handshakeListener struct {
	net.Listener
	limits Limits

	mu sync.Mutex
	// pending has the connections whose handshake has not finished, by address, and count is
	// their number.
	pending       map[string][]*Handshake
	count         int
	authenticated int
}

// Handshake is a connection of a client that authenticates itself.
type Handshake struct {
	net.Conn
	listener *handshakeListener
	address  string
	// The mutex of the listener guards the state.
	state state
}

type state int

const (
	pending state = iota
	authenticated
	closed
)

func (l *handshakeListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	h := &Handshake{Conn: conn, listener: l, address: clientAddress(conn.RemoteAddr())}
	if victim := l.add(h); victim != nil {
		_ = victim.Close()
	}
	return h, nil
}

// add adds a connection. It returns a connection that must be closed, nil if there is room.
func (l *handshakeListener) add(h *Handshake) (victim *Handshake) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case len(l.pending[h.address]) >= l.limits.PendingPerAddress:
		victim = l.random(h.address)
	case l.count >= l.limits.Pending:
		most := ""
		for address, connections := range l.pending {
			if len(connections) > len(l.pending[most]) {
				most = address
			}
		}
		victim = l.random(most)
	}
	if victim != nil {
		l.remove(victim)
		victim.state = closed
	}
	l.pending[h.address] = append(l.pending[h.address], h)
	l.count++
	return victim
}

// random returns a pending connection of an address. If it were the oldest, a host that opens
// connections fast would close each connection of the same address before its handshake ends; if it
// were the new connection, silent connections would keep it out.
func (l *handshakeListener) random(address string) *Handshake {
	connections := l.pending[address]
	return connections[rand.IntN(len(connections))]
}

// remove removes a pending connection.
func (l *handshakeListener) remove(h *Handshake) {
	connections := l.pending[h.address]
	for i, connection := range connections {
		if connection == h {
			last := len(connections) - 1
			connections[i], connections[last] = connections[last], nil
			l.pending[h.address] = connections[:last]
			break
		}
	}
	if len(l.pending[h.address]) == 0 {
		delete(l.pending, h.address)
	}
	l.count--
}

// Finish reports that the client is authenticated. If the connection must be closed, it returns
// why.
func (h *Handshake) Finish() error {
	l := h.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.state != pending {
		return net.ErrClosed
	}
	if l.authenticated >= l.limits.Authenticated {
		return fmt.Errorf("there are already %d connections of clients with a certificate, at most %d are allowed", l.authenticated, l.limits.Authenticated)
	}
	l.remove(h)
	l.authenticated++
	h.state = authenticated
	return nil
}

// Close implements net.Conn.
func (h *Handshake) Close() error {
	l := h.listener
	l.mu.Lock()
	switch h.state {
	case pending:
		l.remove(h)
	case authenticated:
		l.authenticated--
	case closed:
	}
	h.state = closed
	l.mu.Unlock()
	return h.Conn.Close()
}
