// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package servertest

import (
	"context"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc/test/bufconn"
)

// network has the listeners and connections of one server, which are those of the
// machine or in memory. All can be closed at once.
type network struct {
	// inMemory has the listeners by address. It is nil for the network of the
	// machine.
	inMemory map[string]*bufconn.Listener
	// addresses has those at which the server listens, in order.
	addresses chan string

	// mu guards all maps.
	mu      sync.Mutex
	dropped bool
	open    []interface{ Close() error }
}

func newNetwork(inMemory bool) *network {
	n := &network{addresses: make(chan string, 5)}
	if inMemory {
		n.inMemory = map[string]*bufconn.Listener{}
	}
	return n
}

func (n *network) listen(ctx context.Context, address string) (net.Listener, error) {
	listener, err := n.newListener(ctx, address)
	if err != nil {
		return nil, err
	}
	if n.inMemory == nil {
		address = listener.Addr().String()
	}
	n.addresses <- address
	return &trackedListener{Listener: listener, network: n}, nil
}

func (n *network) newListener(ctx context.Context, address string) (net.Listener, error) {
	if n.inMemory == nil {
		return new(net.ListenConfig).Listen(ctx, "tcp", address)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inMemory[address] = bufconn.Listen(1 << 16)
	return n.inMemory[address], nil
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	if n.inMemory == nil {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	n.mu.Lock()
	listener, found := n.inMemory[address]
	n.mu.Unlock()
	if !found {
		return nil, fmt.Errorf("dialing %s: no listener", address)
	}
	return listener.DialContext(ctx)
}

func (n *network) add(closer interface{ Close() error }) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dropped {
		_ = closer.Close()
		return
	}
	n.open = append(n.open, closer)
}

func (n *network) drop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dropped = true
	for _, closer := range n.open {
		_ = closer.Close()
	}
}

type trackedListener struct {
	net.Listener
	network *network
}

func (l *trackedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.network.add(conn)
	}
	return conn, err
}
