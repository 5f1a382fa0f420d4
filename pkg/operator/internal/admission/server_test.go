// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
)

// newCertificate returns a certificate for a host, and a client that trusts it.
func newCertificate(t *testing.T, host string) (*tls.Certificate, *http.Client) {
	t.Helper()
	authority := pkitest.NewAuthority(t)
	certificate, err := pki.NewServing(authority, pki.Names{Hosts: []string{host}}).Config().GetCertificate(nil)
	require.NoError(t, err)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pkitest.Roots(authority)}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return certificate, &http.Client{Transport: transport}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return listener
}

func TestServerStartsWithoutACertificate(t *testing.T) {
	pair, client := newCertificate(t, "127.0.0.1")
	var current atomic.Pointer[tls.Certificate]
	listener := listen(t)
	serve(t.Context(), listener, NewHandler(newValidator(t, present()), NewMetrics(prometheus.NewRegistry())), func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if certificate := current.Load(); certificate != nil {
			return certificate, nil
		}
		return nil, errors.New("not yet")
	})
	request := func() (*http.Response, error) {
		body := review(t, create(t, newPool("new", "workers", "a")))
		return client.Post("https://"+listener.Addr().String()+"/validate", "application/json", bytes.NewReader(body))
	}
	if response, err := request(); err == nil {
		_ = response.Body.Close()
		t.Fatal("answered without a certificate")
	}
	current.Store(pair)
	response, err := request()
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	if response.ProtoMajor != 2 || response.TLS.Version != tls.VersionTLS13 {
		t.Errorf("answered with %s and TLS version %x", response.Proto, response.TLS.Version)
	}
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	if readResponse(t, body).Allowed {
		t.Error("allowed a group that is in use")
	}
}

func TestServerRejectsOldTLS(t *testing.T) {
	pair, client := newCertificate(t, "127.0.0.1")
	client.Transport.(*http.Transport).TLSClientConfig.MaxVersion = tls.VersionTLS12
	listener := listen(t)
	serve(t.Context(), listener, http.NotFoundHandler(), func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair, nil })
	response, err := client.Get("https://" + listener.Addr().String())
	if err == nil {
		_ = response.Body.Close()
		t.Error("TLS 1.2 was accepted")
	}
}

func TestServerFinishesRequestsInFlight(t *testing.T) {
	pair, client := newCertificate(t, "127.0.0.1")
	begun, finish := make(chan struct{}), make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-finish
		if r.Context().Err() != nil {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	listener := listen(t)
	serve(ctx, listener, handler, func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair, nil })
	codes := make(chan int, 1)
	go func() {
		response, err := client.Get("https://" + listener.Addr().String())
		if err != nil {
			t.Error(err)
			codes <- 0
			return
		}
		_ = response.Body.Close()
		codes <- response.StatusCode
	}()
	<-begun
	stop()
	for {
		// Until the listener is closed.
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	close(finish)
	if code := <-codes; code != http.StatusOK {
		t.Errorf("answered %d", code)
	}
}

func TestAddressInUse(t *testing.T) {
	listener := listen(t)
	defer func() { _ = listener.Close() }()
	if err := Serve(t.Context(), listener.Addr().String(), http.NotFoundHandler(), nil); err == nil {
		t.Error("no error")
	}
}

// pipe is a listener with one in-memory connection.
type pipe struct {
	connections chan net.Conn
	closed      chan struct{}
}

func (p pipe) Accept() (net.Conn, error) {
	select {
	case conn := <-p.connections:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipe) Close() error   { close(p.closed); return nil }
func (p pipe) Addr() net.Addr { return &net.TCPAddr{} }

// TestServerClosesSlowConnections of clients that send nothing, or send slowly.
func TestServerClosesSlowConnections(t *testing.T) {
	for name, say := range map[string]func(*tls.Conn) error{
		"silent before the handshake": func(*tls.Conn) error { return nil },
		"silent after the handshake":  func(c *tls.Conn) error { return c.Handshake() },
		"half a request": func(c *tls.Conn) error {
			_, err := io.WriteString(c, "POST /validate HTTP/1.1\r\nHost: webhook\r\nContent-Length: 100\r\n\r\nhalf")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pair, _ := newCertificate(t, "webhook")
				p := pipe{make(chan net.Conn), make(chan struct{})}
				ctx, stop := context.WithCancel(t.Context())
				handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) })
				serve(ctx, p, handler, func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair, nil })
				client, server := net.Pipe()
				p.connections <- server
				begin := time.Now()
				conn := tls.Client(client, &tls.Config{InsecureSkipVerify: true})
				require.NoError(t, say(conn))
				// The connection is closed; the data until then does not matter.
				_, _ = io.ReadAll(client)
				if took := time.Since(begin); took < requestTimeout || took > 2*requestTimeout {
					t.Errorf("kept the connection for %s", took)
				}
				stop()
				// Shutdown polls while a connection is being closed; the time is the bubble's.
				time.Sleep(2 * stopTimeout)
				synctest.Wait()
			})
		})
	}
}
