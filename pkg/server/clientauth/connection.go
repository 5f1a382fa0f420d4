// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clientauth

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/base/connlimit"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/storage"
)

// connection is the connection of a client with a valid certificate. It is the AuthInfo
// of its calls.
type connection struct {
	credentials.TLSInfo
	conn        net.Conn
	certificate *x509.Certificate
	// root is the authority of the certificate.
	root   *x509.Certificate
	client pki.Client
	// recordKey and ownerKey are the keys of the objects in the storage, empty if the storage
	// cannot have such objects.
	recordKey, ownerKey string
	// expiry closes the connection when the certificate expires.
	expiry *time.Timer
	// namesCluster is true after the first call with a Kubernetes cluster.
	namesCluster atomic.Bool

	mu sync.Mutex
	// ended is why the connection is being closed.
	ended   error
	streams map[*openStream]struct{}
}

// openStream is a stream of a connection.
type openStream struct {
	// cluster is the Kubernetes cluster that the client named.
	cluster string
	cancel  context.CancelCauseFunc
}

// newConnection returns nil for a certificate without a client, whose calls are rejected.
func newConnection(conn net.Conn, info credentials.TLSInfo) *connection {
	if len(info.State.VerifiedChains) == 0 {
		return nil
	}
	chain := info.State.VerifiedChains[0]
	certificate := chain[0]
	client, err := pki.PeerClient(certificate)
	if err != nil {
		return nil
	}
	c := &connection{TLSInfo: info, conn: conn, certificate: certificate, root: chain[len(chain)-1], client: client, streams: map[*openStream]struct{}{}}
	// The calls of other roles are rejected. No registration issues a certificate for a
	// tenant with another name.
	if client.Role == pki.RoleOperator && identifier.Validate(client.Tenant) == nil {
		c.recordKey, c.ownerKey = storage.OperatorKey(client.Tenant, client.ID), storage.TenantKey(client.Tenant)
	}
	return c
}

// isAgent reports whether the client is an agent of an instance.
func (c *connection) isAgent() bool { return c.client.Role == pki.RoleAgent }

// TLS returns the state of the TLS connection.
func (c *connection) TLS() credentials.TLSInfo { return c.TLSInfo }

// open adds a stream, whose context is canceled with a gRPC status as the cause when it must
// be closed. remove must be called when the stream has returned. The error is the status if
// the connection is being closed.
func (c *connection) open(ctx context.Context, cluster string) (_ context.Context, remove func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &openStream{cluster: cluster, cancel: cancel}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		cancel(nil)
		return nil, nil, c.ended
	}
	c.streams[s] = struct{}{}
	return ctx, func() {
		cancel(nil)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.streams, s)
	}, nil
}

// rejection returns the status of all further calls of a connection that is being
// closed, nil if they are served.
func (c *connection) rejection() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if status.Code(c.ended) == codes.Unauthenticated {
		return c.ended
	}
	return nil
}

// end closes all streams with a status, and the connection after a delay. It reports
// whether the connection was not being closed already.
func (c *connection) end(err error, delay time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return false
	}
	c.ended = err
	for s := range c.streams {
		s.cancel(err)
	}
	time.AfterFunc(delay, func() { _ = c.conn.Close() })
	return true
}

// closeStreams closes the streams of another Kubernetes cluster than the owner's.
func (c *connection) closeStreams(owner *Owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.streams {
		if s.cluster != "" && !owner.is(s.cluster) {
			s.cancel(owner.refusal(c.client.Tenant, s.cluster))
		}
	}
}

// Listener returns l for a server with Credentials. limits limits its connections.
func (g *Guard) Listener(l net.Listener, limits connlimit.Limits) net.Listener {
	return &listener{connlimit.Handshakes(l, limits), g}
}

type listener struct {
	net.Listener
	guard *Guard
}

func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &trackedConn{Conn: conn, handshake: conn.(*connlimit.Handshake), guard: l.guard}, nil
}

// trackedConn removes its connection from the guard when it is closed.
type trackedConn struct {
	net.Conn
	// handshake is the same connection.
	handshake *connlimit.Handshake
	guard     *Guard
	// The mutex of the guard guards the fields below.
	closed     bool
	connection *connection
}

func (c *trackedConn) Close() error {
	c.guard.mu.Lock()
	c.closed = true
	if c.connection != nil {
		delete(c.guard.connections, c.connection)
		c.connection.expiry.Stop()
	}
	c.guard.mu.Unlock()
	return c.Conn.Close()
}

// Credentials returns credentials with which the guard knows the clients of connections
// that a Listener accepted.
func (g *Guard) Credentials(c credentials.TransportCredentials) credentials.TransportCredentials {
	return &transportCredentials{c, g}
}

type transportCredentials struct {
	credentials.TransportCredentials
	guard *Guard
}

func (c *transportCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	changes := c.guard.authorityChanges()
	conn, auth, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	info, isTLS := auth.(credentials.TLSInfo)
	tracked, isTracked := raw.(*trackedConn)
	if isTracked {
		if err := tracked.handshake.Finish(); err != nil {
			_ = conn.Close()
			return nil, nil, fmt.Errorf("accept the connection of a client: %w", err)
		}
	}
	if isTLS && isTracked {
		if connected := newConnection(tracked, info); connected != nil {
			c.guard.add(tracked, connected)
			if c.guard.authorityChanges() != changes {
				// The client may have seen the authorities of before.
				c.guard.authorityChanged(connected)
			}
			return conn, connected, nil
		}
	}
	return conn, auth, nil
}

func (c *transportCredentials) Clone() credentials.TransportCredentials {
	return &transportCredentials{c.TransportCredentials.Clone(), c.guard}
}

func (g *Guard) add(conn *trackedConn, c *connection) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !conn.closed {
		conn.connection = c
		c.expiry = g.expire(c)
		g.connections[c] = struct{}{}
	}
}

// connected returns the connections.
func (g *Guard) connected() []*connection {
	g.mu.Lock()
	defer g.mu.Unlock()
	connections := make([]*connection, 0, len(g.connections))
	for c := range g.connections {
		connections = append(connections, c)
	}
	return connections
}
