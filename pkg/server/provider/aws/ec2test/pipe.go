// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test

import (
	"context"
	"net"
	"sync"
)

// pipeListener accepts connections in memory.
type pipeListener struct {
	connections chan net.Conn
	closed      chan struct{}
	close       sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{connections: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept returns the next connection.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case connection := <-l.connections:
		return connection, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (l *pipeListener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

// Addr returns an address that no client connects to.
func (*pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// Dial connects to a server that StartInMemory has started.
func (s *Server) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case s.listener.connections <- server:
		return client, nil
	case <-s.listener.closed:
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: ctx.Err()}
	}
}
