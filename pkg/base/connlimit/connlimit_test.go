// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connlimit

import (
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/test/bufconn"
)

// accept accepts connections in memory until the test is over, and returns them.
func accept(t *testing.T, limit func(net.Listener) net.Listener) (accepted func() []net.Conn, dial func() net.Conn) {
	t.Helper()
	inner := bufconn.Listen(1)
	listener := limit(inner)
	var mu sync.Mutex
	var conns []net.Conn
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	accepted = func() []net.Conn {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(conns)
	}
	dial = func() net.Conn {
		conn, _ := inner.DialContext(t.Context())
		return conn
	}
	return accepted, dial
}

func TestOneAddressHasLimitedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted, dial := accept(t, func(l net.Listener) net.Listener { return PerAddress(l, 2) })
		dial()
		dial()
		require.Len(t, accepted(), 2)
		_, err := dial().Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "the third connection is open")
		require.NoError(t, accepted()[0].Close())
		_ = accepted()[0].Close() // A second time, as gRPC may do.
		dial()
		require.Len(t, accepted(), 3)
		_, err = dial().Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "a connection counts as closed twice")
	})
}

func TestConnectionsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted, dial := accept(t, func(l net.Listener) net.Listener { return Total(l, 2) })
		dial()
		dial()
		go dial()
		require.Len(t, accepted(), 2)
		require.NoError(t, accepted()[0].Close())
		require.Len(t, accepted(), 3)
	})
}

func TestClientAddress(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1:1":                "192.0.2.1",
		"[::ffff:192.0.2.1]:1":       "192.0.2.1",
		"[2001:db8:1:2:3:4:5:6]:1":   "2001:db8:1:2::/64",
		"[2001:db8:1:2::9%eth0]:700": "2001:db8:1:2::/64",
	} {
		address, err := net.ResolveTCPAddr("tcp", text)
		require.NoError(t, err)
		assert.Equal(t, want, clientAddress(address))
	}
	assert.Equal(t, "memory", clientAddress(&net.UnixAddr{Name: "memory"}))
}
