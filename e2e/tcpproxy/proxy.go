// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package tcpproxy stands between clients and servers and can lose the bytes that they send.
package tcpproxy

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// Backend returns the address to forward a new connection to.
type Backend func() (string, error)

// Proxy forwards the bytes of connections.
type Proxy struct {
	// Address is where clients connect, host:port.
	Address string

	backend  Backend
	listener net.Listener

	mu sync.Mutex
	// requests and responses are closed while the bytes of clients and those of servers
	// are forwarded.
	requests, responses chan struct{}
	closed              bool
	// accepted are the connections of clients that no backend has yet.
	accepted int
	// held is how many new connections, and ends with bytes that were received, wait for Heal.
	held  int
	conns map[net.Conn]struct{}
}

// Start serves at a free port of this machine until Close.
func Start(ctx context.Context, backend Backend) (*Proxy, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	p := &Proxy{
		Address:   listener.Addr().String(),
		backend:   backend,
		listener:  listener,
		requests:  make(chan struct{}),
		responses: make(chan struct{}),
		conns:     map[net.Conn]struct{}{},
	}
	close(p.requests)
	close(p.responses)
	go p.serve()
	return p, nil
}

// Cut stops forwarding, like a network that loses all packets: connections stay open, new
// connections are accepted, and neither end notices that the other end closes them.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests, p.responses = stopped(p.requests), stopped(p.responses)
}

// CutResponses stops forwarding what servers send. They receive what clients send.
func (p *Proxy) CutResponses() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.responses = stopped(p.responses)
}

// Heal forwards everything that was sent since Cut or CutResponses.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, direction := range []chan struct{}{p.requests, p.responses} {
		if !isClosed(direction) {
			close(direction)
		}
	}
}

// stopped returns a direction in which nothing is forwarded.
func stopped(direction chan struct{}) chan struct{} {
	if isClosed(direction) {
		return make(chan struct{})
	}
	return direction
}

func isClosed(direction chan struct{}) bool {
	select {
	case <-direction:
		return true
	default:
		return false
	}
}

// Waiting returns how many connections were accepted that no server has seen yet.
func (p *Proxy) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Connections returns how many connections to servers are open.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Each has two ends, and those that wait have one.
	return (len(p.conns) - p.accepted) / 2
}

// Disconnect closes the present connections.
func (p *Proxy) Disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
}

// Close closes all connections, and accepts no others.
func (p *Proxy) Close() error {
	p.Heal()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Disconnect()
	return p.listener.Close()
}

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.forward(client)
	}
}

// forward forwards a connection until one of its ends closes it.
func (p *Proxy) forward(client net.Conn) {
	defer p.close(client)
	if !p.open(client) {
		return
	}
	p.count(1)
	p.hold(&p.requests)
	server, err := p.dial()
	p.count(-1)
	if err != nil {
		return
	}
	defer p.close(server)
	if !p.open(server) {
		return
	}
	finished := make(chan struct{}, 2)
	for _, way := range []struct {
		from, to  net.Conn
		direction *chan struct{}
	}{{client, server, &p.requests}, {server, client, &p.responses}} {
		go func() {
			p.forwardBytes(way.from, way.to, way.direction)
			finished <- struct{}{}
		}()
	}
	<-finished
}

func (p *Proxy) dial() (net.Conn, error) {
	address, err := p.backend()
	if err != nil {
		return nil, err
	}
	return net.DialTimeout("tcp", address, 5*time.Second)
}

// forwardBytes forwards bytes until from is closed, and waits before each write.
func (p *Proxy) forwardBytes(from, to net.Conn, direction *chan struct{}) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.hold(direction)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// hold returns when a direction is forwarded, at once if it was not cut.
func (p *Proxy) hold(direction *chan struct{}) {
	p.mu.Lock()
	forwarded := *direction
	if isClosed(forwarded) {
		p.mu.Unlock()
		return
	}
	p.held++
	p.mu.Unlock()
	<-forwarded
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held--
}

func (p *Proxy) count(change int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accepted += change
}

// open records a connection. It returns false after Close.
func (p *Proxy) open(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.conns[conn] = struct{}{}
	}
	return !p.closed
}

func (p *Proxy) close(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
	_ = conn.Close()
}
