// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package httpservertest checks that an HTTP port limits its connections.
package httpservertest

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// most is more than any port allows.
const most = 100

// Connections opens connections, each of which sends a request and stays open, until the server
// closes one without a response. It returns how many were served.
func Connections(t testing.TB, dial func() (net.Conn, error)) int {
	t.Helper()
	for served := range most {
		conn, err := dial()
		if err != nil {
			return served // TLS: the connection is closed during the handshake
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: test\r\n\r\n"); err != nil {
			return served
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return served
		}
		require.NoError(t, response.Body.Close())
	}
	t.Fatalf("The server keeps %d connections of one address", most)
	return 0
}
