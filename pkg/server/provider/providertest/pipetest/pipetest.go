// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package pipetest provides connections in memory for servers of tests. In a bubble of
// synctest, time passes while they wait.
package pipetest

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
)

// Listener accepts connections in memory.
type Listener struct {
	port        int
	connections chan net.Conn
	closed      chan struct{}
	close       sync.Once
}

// Listen returns a listener with a port that servers show in their addresses.
func Listen(port int) *Listener {
	return &Listener{port: port, connections: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept returns the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case connection := <-l.connections:
		return connection, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (l *Listener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

// Addr returns an address that no client connects to. The certificates of package httptest
// are valid for it.
func (l *Listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: l.port} }

// Dial connects to the listener and ignores the address.
func (l *Listener) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.connections <- server:
		return client, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: ctx.Err()}
	}
}

// NewServer returns a server that does not serve yet. A nil listener means a port of this
// host. The server logs nothing, because clients may close connections.
func NewServer(handler http.HandlerFunc, l *Listener) *httptest.Server {
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if l != nil {
		server.Listener.Close()
		server.Listener = l
	}
	return server
}
