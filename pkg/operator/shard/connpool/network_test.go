// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// firstRetransmission is when TCP first retransmits a packet (RFC 6298). Each further wait is
// twice as long.
const firstRetransmission = time.Second

// network connects clients and servers in memory, so that tests can run on a fake clock. It
// can lose packets: data is lost without an error, and new connections hang.
type network struct {
	mu        sync.Mutex
	listeners map[string]*listener
	lossy     map[string]bool
}

func newNetwork() *network {
	return &network{listeners: map[string]*listener{}, lossy: map[string]bool{}}
}

// lose starts or stops losing all packets from and to an address.
func (n *network) lose(address string, lossy bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lossy[address] = lossy
}

func (n *network) loses(address string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lossy[address]
}

func (n *network) listen(address string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &listener{network: n, address: address, accept: make(chan net.Conn), closed: make(chan struct{})}
	n.listeners[address] = l
	return l
}

// dial is a dialer for gRPC.
func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	for wait := firstRetransmission; n.loses(address); wait *= 2 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	ours, theirs := net.Pipe()
	select {
	case l.accept <- n.side(theirs, address):
		return n.side(ours, address), nil
	case <-l.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type listener struct {
	network *network
	address string
	accept  chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.accept:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.address, Net: "memory"} }

// lossyConn is one side of a connection.
type lossyConn struct {
	net.Conn
	network *network
	address string
	closed  chan struct{}
	once    *sync.Once
}

func (n *network) side(conn net.Conn, address string) net.Conn {
	return lossyConn{Conn: conn, network: n, address: address, closed: make(chan struct{}), once: &sync.Once{}}
}

func (c lossyConn) Write(b []byte) (int, error) {
	if c.network.loses(c.address) {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// Read does not return io.EOF for a close of the other side while packets are lost. It blocks
// until its own side is closed.
func (c lossyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if errors.Is(err, io.EOF) && c.network.loses(c.address) {
		<-c.closed
	}
	return n, err
}

func (c lossyConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
