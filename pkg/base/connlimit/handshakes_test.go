// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connlimit

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// addressed is a connection in memory of a client with an address.
type addressed struct {
	net.Conn
	remote net.TCPAddr
}

func (c *addressed) RemoteAddr() net.Addr { return &c.remote }

// queue is a listener whose connections are a list.
type queue struct {
	net.Listener
	waiting []net.Conn
}

func (q *queue) Accept() (net.Conn, error) {
	if len(q.waiting) == 0 {
		return nil, io.EOF
	}
	conn := q.waiting[0]
	q.waiting = q.waiting[1:]
	return conn, nil
}

// clients connects clients to a listener with limits.
type clients struct {
	t        *testing.T
	queue    *queue
	listener net.Listener
	port     int
}

func newClients(t *testing.T, limits Limits) *clients {
	q := &queue{}
	return &clients{t: t, queue: q, listener: Handshakes(q, limits)}
}

// connect returns the server's side of a new connection of 192.0.2.host.
func (c *clients) connect(host byte) *Handshake {
	c.t.Helper()
	client, server := net.Pipe()
	c.t.Cleanup(func() { _ = client.Close() })
	c.port++
	c.queue.waiting = append(c.queue.waiting, &addressed{server, net.TCPAddr{IP: net.IPv4(192, 0, 2, host), Port: c.port}})
	conn, err := c.listener.Accept()
	require.NoError(c.t, err)
	return conn.(*Handshake)
}

// open returns how many of the connections are not closed.
func open(connections ...*Handshake) (count int) {
	for _, connection := range connections {
		if connection.state != closed {
			count++
		}
	}
	return count
}

// empty checks that the listener counts nothing.
func (c *clients) empty() {
	c.t.Helper()
	l := c.listener.(*handshakeListener)
	assert.Empty(c.t, l.pending)
	assert.Zero(c.t, l.count)
	assert.Zero(c.t, l.authenticated)
}

func TestASilentHostDoesNotKeepOthersOut(t *testing.T) {
	c := newClients(t, Limits{Pending: 8, PendingPerAddress: 4, Authenticated: 100})
	var silent []*Handshake
	for range 100 {
		silent = append(silent, c.connect(1))
		assert.LessOrEqual(t, open(silent...), 4)
	}
	for range 50 {
		other := c.connect(2)
		silent = append(silent, c.connect(1))
		assert.Equal(t, 4, open(silent...))
		require.NoError(t, other.Finish())
	}
	for _, connection := range silent {
		_ = connection.Close()
	}
	assert.Equal(t, 50, c.listener.(*handshakeListener).authenticated)
}

func TestSilentHostsOfManyAddressesDoNotKeepOthersOut(t *testing.T) {
	c := newClients(t, Limits{Pending: 8, PendingPerAddress: 4, Authenticated: 100})
	var silent []*Handshake
	for round := range 50 {
		for host := range byte(3) {
			silent = append(silent, c.connect(host))
		}
		other := c.connect(100)
		for host := range byte(3) {
			silent = append(silent, c.connect(host))
		}
		assert.LessOrEqual(t, open(append(silent, other)...), 8)
		require.NoError(t, other.Finish(), "round %d", round)
	}
}

func TestAHostWithTheAddressOfASilentHostConnects(t *testing.T) {
	c := newClients(t, Limits{Pending: 200, PendingPerAddress: 100, Authenticated: 1000})
	for range 100 {
		c.connect(1)
	}
	finished := 0
	for range 100 {
		other := c.connect(1)
		c.connect(1) // the silent host goes on
		if other.Finish() == nil {
			finished++
		}
	}
	// Each has a chance of 99 %.
	assert.Greater(t, finished, 80)
}

func TestAuthenticatedConnectionsAreLimited(t *testing.T) {
	c := newClients(t, Limits{Pending: 10, PendingPerAddress: 10, Authenticated: 2})
	first, second, third := c.connect(1), c.connect(1), c.connect(1)
	require.NoError(t, first.Finish())
	require.NoError(t, second.Finish())
	require.ErrorContains(t, third.Finish(), "at most 2 are allowed")
	require.NoError(t, first.Close())
	_ = first.Close() // A second time, as gRPC may do.
	require.NoError(t, third.Finish())
	require.ErrorIs(t, first.Finish(), net.ErrClosed)
	fourth := c.connect(1)
	require.Error(t, fourth.Finish(), "a connection counts as closed twice")
	for _, connection := range []*Handshake{second, third, fourth} {
		require.NoError(t, connection.Close())
	}
	c.empty()
}

func TestAClosedConnectionIsNotCounted(t *testing.T) {
	c := newClients(t, Limits{Pending: 4, PendingPerAddress: 2, Authenticated: 4})
	for host := range byte(200) {
		connection := c.connect(host)
		if host%2 == 0 {
			require.NoError(t, connection.Finish(), fmt.Sprint(host))
		}
		require.NoError(t, connection.Close())
	}
	c.empty()
}
