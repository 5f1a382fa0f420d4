// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tcpproxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/testing/runtest"
)

// echo is a server that sends back what it receives.
type echo struct {
	address string

	mu    sync.Mutex
	bytes bytes.Buffer
}

func startEcho(t *testing.T) *echo {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	e := &echo{address: listener.Addr().String()}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, io.TeeReader(conn, e))
				_ = conn.Close()
			}()
		}
	}()
	return e
}

// Write records what was received.
func (e *echo) Write(data []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bytes.Write(data)
}

func (e *echo) received() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bytes.String()
}

// holds returns how many connections and directions wait for Heal.
func (p *Proxy) holds() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

func start(t *testing.T, backend Backend) *Proxy {
	t.Helper()
	proxy, err := Start(t.Context(), backend)
	require.NoError(t, err)
	t.Cleanup(func() { _ = proxy.Close() })
	return proxy
}

func dial(t *testing.T, proxy *Proxy) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(context.WithoutCancel(t.Context()), "tcp", proxy.Address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn, bufio.NewReader(conn)
}

func TestWhatIsSentDuringACutArrivesAfterIt(t *testing.T) {
	echo := startEcho(t)
	proxy := start(t, func() (string, error) { return echo.address, nil })
	conn, lines := dial(t, proxy)
	_, err := io.WriteString(conn, "before\n")
	require.NoError(t, err)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "before\n", line)

	proxy.Cut()
	_, err = io.WriteString(conn, "during\n")
	require.NoError(t, err)
	later, laterLines := dial(t, proxy)
	_, err = io.WriteString(later, "later\n")
	require.NoError(t, err)
	runtest.Eventually(t, "the bytes and the new connection are held", func() bool { return proxy.holds() == 2 })
	assert.Equal(t, 1, proxy.Waiting())
	assert.Equal(t, "before\n", echo.received())

	proxy.Heal()
	for want, lines := range map[string]*bufio.Reader{"during\n": lines, "later\n": laterLines} {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, want, line)
	}
	assert.Zero(t, proxy.Waiting())
}

func TestResponsesAreLostAlone(t *testing.T) {
	received := make(chan string, 1)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		line, _ := bufio.NewReader(conn).ReadString('\n')
		received <- line
		_, _ = io.WriteString(conn, "response\n")
	}()
	proxy := start(t, func() (string, error) { return listener.Addr().String(), nil })
	proxy.CutResponses()
	conn, lines := dial(t, proxy)
	_, err = io.WriteString(conn, "request\n")
	require.NoError(t, err)
	assert.Equal(t, "request\n", <-received)
	runtest.Eventually(t, "the response is held", func() bool { return proxy.holds() == 1 })
	assert.Equal(t, 1, proxy.Connections())

	proxy.Heal()
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "response\n", line)
	proxy.Disconnect()
	_, err = lines.ReadString('\n')
	assert.Error(t, err)
	runtest.Eventually(t, "the connection is closed", func() bool { return proxy.Connections() == 0 })
}

func TestAConnectionWithoutABackendIsClosed(t *testing.T) {
	proxy := start(t, func() (string, error) { return "", errors.New("no server leads") })
	_, lines := dial(t, proxy)
	_, err := lines.ReadString('\n')
	assert.Error(t, err)
}
