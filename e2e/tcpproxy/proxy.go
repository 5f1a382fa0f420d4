// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package tcpproxy stands between clients and servers and can lose what they send.
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
	// forwarding is closed while bytes are forwarded.
	forwarding chan struct{}
	cut        bool
	closed     bool
	// accepted are the connections of clients that no backend has yet.
	accepted int
	conns    map[net.Conn]struct{}
}

// Start serves at a free port of this machine until Close.
func Start(ctx context.Context, backend Backend) (*Proxy, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	p := &Proxy{
		Address:    listener.Addr().String(),
		backend:    backend,
		listener:   listener,
		forwarding: make(chan struct{}),
		conns:      map[net.Conn]struct{}{},
	}
	close(p.forwarding)
	go p.serve()
	return p, nil
}

// Cut stops forwarding, like a network that loses all packets: connections stay open, new
// ones are accepted, and neither end notices that the other one closes them.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cut {
		p.cut, p.forwarding = true, make(chan struct{})
	}
}

// Heal forwards everything that was sent meanwhile.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		p.cut = false
		close(p.forwarding)
	}
}

// Waiting returns how many connections were accepted that no server has seen yet.
func (p *Proxy) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Close closes all connections.
func (p *Proxy) Close() error {
	p.Heal()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for conn := range p.conns {
		_ = conn.Close()
	}
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
	p.wait()
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
	for _, ends := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			p.copy(ends[0], ends[1])
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

// copy forwards bytes until from is closed.
func (p *Proxy) copy(from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.wait()
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

// wait returns when bytes are forwarded.
func (p *Proxy) wait() {
	p.mu.Lock()
	forwarding := p.forwarding
	p.mu.Unlock()
	<-forwarding
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
