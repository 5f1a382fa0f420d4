// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package httpserver

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/test/bufconn"

	"nstance.dev/operator/pkg/base/httpserver/httpservertest"
)

// serve serves ok until the end of the test, in memory. dial returns a connection.
func serve(t *testing.T) (dial func() net.Conn) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	listener := bufconn.Listen(1 << 16)
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, listener, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "ok")
		}))
	}()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	return func() net.Conn {
		conn, err := listener.DialContext(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
}

// closedAfter returns when the server closes a connection.
func closedAfter(t *testing.T, conn net.Conn) time.Duration {
	t.Helper()
	start := time.Now()
	_, err := io.Copy(io.Discard, conn)
	require.NoError(t, err)
	return time.Since(start)
}

func TestAnIdleConnectionIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := serve(t)()
		_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: test\r\n\r\n")
		require.NoError(t, err)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		assert.Equal(t, "ok", string(body))
		assert.Equal(t, idleTimeout, closedAfter(t, conn))
	})
}

func TestAConnectionWithoutACompleteRequestIsClosed(t *testing.T) {
	for name, sent := range map[string]string{
		"nothing":          "",
		"a part of a head": "GET / HTTP/1.1\r\nHost:",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := serve(t)()
				_, err := io.WriteString(conn, sent)
				require.NoError(t, err)
				assert.Equal(t, readTimeout, closedAfter(t, conn))
			})
		})
	}
}

func TestAClientThatDoesNotReadItsResponseIsDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener := bufconn.Listen(1 << 10)
		served := make(chan error)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_ = Serve(ctx, listener, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, err := io.WriteString(w, strings.Repeat("x", 1<<20))
				served <- err
			}))
		}()
		start := time.Now()
		conn, err := listener.DialContext(t.Context())
		require.NoError(t, err)
		_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: test\r\n\r\n")
		require.NoError(t, err)
		require.Error(t, <-served)
		assert.Equal(t, writeTimeout, time.Since(start))
		_ = conn.Close()
		cancel()
		synctest.Wait()
	})
}

func TestTheConnectionsOfAnAddressAreLimited(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = Serve(ctx, listener, nil, http.NotFoundHandler()) }()
	assert.Equal(t, maxPerAddress, httpservertest.Connections(t, func() (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
	}))
}
