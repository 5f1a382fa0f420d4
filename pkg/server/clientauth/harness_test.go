// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clientauth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/connlimit"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

// errDown is the error of a storage that is down.
var errDown = errors.New("no route to host")

// world is a Guard with a storage, and clients that connect. It is in a bubble of
// synctest: times are exact.
type world struct {
	*Guard
	t         *testing.T
	authority *pki.Authority
	serving   credentials.TransportCredentials
	// store is the storage as an administrator and other servers see it. Its calls never
	// fail.
	store storage.Store
	// intercepted is the same storage as the guard sees it.
	intercepted storage.Store

	mu sync.Mutex
	// down makes all calls of the guard fail.
	down bool
	// before is called before each call of the guard, unless it is nil. Its error is the
	// error of the call.
	before func(context.Context, storagetest.Call) error
	calls  []storagetest.Call
}

func inBubble(t *testing.T, test func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store, err := file.Open(t.TempDir())
		require.NoError(t, err)
		w := &world{t: t, authority: pkitest.NewAuthority(t), store: store}
		w.intercepted = storagetest.Intercepted{Store: store, Intercept: w.intercept}
		w.Guard = New(logr.Discard(), w.intercepted, "a")
		w.serving = w.Credentials(credentials.NewTLS(pki.NewServing(w.authority, pki.Names{Hosts: []string{"127.0.0.1"}}).MutualConfig()))
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { w.Run(ctx) })
		t.Cleanup(func() {
			cancel()
			running.Wait()
			for _, c := range w.connected() {
				assert.NoError(t, c.conn.Close())
			}
		})
		test(t, w)
	})
}

func (w *world) intercept(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
	w.mu.Lock()
	w.calls = append(w.calls, call)
	down, before := w.down, w.before
	w.mu.Unlock()
	if down {
		return errDown
	}
	if before != nil {
		if err := before(ctx, call); err != nil {
			return err
		}
	}
	return do(ctx)
}

func (w *world) setDown(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
}

// takeCalls returns the calls for an object since it was called last.
func (w *world) takeCalls(key string) (taken []storagetest.Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var others []storagetest.Call
	for _, call := range w.calls {
		if call.Key == key {
			taken = append(taken, call)
		} else {
			others = append(others, call)
		}
	}
	w.calls = others
	return taken
}

// put stores an object as another server does.
func (w *world) put(key string, data []byte) {
	w.t.Helper()
	require.NoError(w.t, w.store.Delete(w.t.Context(), key))
	_, err := w.store.Create(w.t.Context(), key, data)
	require.NoError(w.t, err)
}

// operatorKey is the key of the registration of the operator of tenant "default".
var operatorKey = storage.OperatorKey("default", "prod")

// record stores a registration of the operator.
func (w *world) record(r registration.Record) {
	w.t.Helper()
	data, err := json.Marshal(r)
	require.NoError(w.t, err)
	w.put(operatorKey, data)
}

// identity is a certificate, and its serial number.
type identity struct {
	tls.Certificate
	serial string
}

func (w *world) issue(client pki.Client, lifetime time.Duration) identity {
	w.t.Helper()
	certificatePEM, keyPEM, err := w.authority.IssueClient(client, lifetime)
	require.NoError(w.t, err)
	certificate, err := tls.X509KeyPair(certificatePEM, keyPEM)
	require.NoError(w.t, err)
	return identity{certificate, certificate.Leaf.SerialNumber.Text(16)}
}

// operator issues a certificate for the operator of a tenant.
func (w *world) operator(tenant string) identity {
	w.t.Helper()
	return w.issue(pki.Client{ID: "prod", Tenant: tenant, Role: pki.RoleOperator}, 24*time.Hour)
}

// client is the client of a connection.
type client struct {
	w *world
	// auth identifies the connection to the server.
	auth credentials.AuthInfo
	conn net.Conn
	// closed is closed when the server has closed the connection.
	closed chan struct{}
}

// tlsConfig returns the configuration of a client.
func (w *world) tlsConfig(i identity) *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.authority.CertificatePEM())
	return &tls.Config{
		Certificates: []tls.Certificate{i.Certificate}, RootCAs: roots, ServerName: "127.0.0.1", NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13,
	}
}

// connect makes the handshake of a client with the server.
func (w *world) connect(i identity) *client {
	w.t.Helper()
	clientSide, serverSide := net.Pipe()
	c := &client{w: w, closed: make(chan struct{})}
	conn := tls.Client(clientSide, w.tlsConfig(i))
	go func() {
		defer close(c.closed)
		_, _ = io.Copy(io.Discard, conn)
	}()
	accepted, err := w.listen(serverSide).Accept()
	require.NoError(w.t, err)
	c.conn, c.auth, err = w.serving.Clone().ServerHandshake(accepted)
	require.NoError(w.t, err)
	return c
}

// listen returns a listener that accepts a connection.
func (w *world) listen(conn net.Conn) net.Listener {
	return w.Listener(&listenerOf{conn: conn}, connlimit.Limits{Pending: 1, PendingPerAddress: 1, Authenticated: 1})
}

// listenerOf accepts a connection.
type listenerOf struct {
	net.Listener
	conn net.Conn
}

func (l *listenerOf) Accept() (net.Conn, error) { return l.conn, nil }

// context returns the context of a call that names Kubernetes clusters.
func (c *client) context(clusters ...string) context.Context {
	ctx := peer.NewContext(klog.NewContext(c.w.t.Context(), logr.Discard()), &peer.Peer{AuthInfo: c.auth})
	if len(clusters) == 0 {
		return ctx
	}
	return metadata.NewIncomingContext(ctx, metadata.MD{identifier.KubernetesClusterKey: clusters})
}

// call makes a call that names Kubernetes clusters.
func (c *client) call(clusters ...string) error {
	c.w.t.Helper()
	return c.callIn(c.context(clusters...))
}

// callIn makes a call, and expects that it is served unless it has an error.
func (c *client) callIn(ctx context.Context) error {
	c.w.t.Helper()
	served := false
	response, err := c.w.Unary(ctx, "request", nil, func(_ context.Context, request any) (any, error) {
		assert.Equal(c.w.t, "request", request)
		served = true
		return "response", nil
	})
	assert.Equal(c.w.t, err == nil, served, "the call is served: %v", err)
	if served {
		assert.Equal(c.w.t, "response", response)
	}
	return err
}

// stream is the server's side of a stream.
type stream struct {
	grpc.ServerStream
	ctx    context.Context
	cancel context.CancelFunc
}

func newStream(ctx context.Context) *stream {
	s := &stream{}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s
}

func (s *stream) Context() context.Context { return s.ctx }

// open opens a stream that names Kubernetes clusters, and returns a channel that receives
// its error.
func (c *client) open(clusters ...string) <-chan error {
	c.w.t.Helper()
	opening := newStream(c.context(clusters...))
	c.w.t.Cleanup(opening.cancel)
	opened, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- c.w.Stream("server", opening, nil, func(server any, s grpc.ServerStream) error {
			assert.Equal(c.w.t, "server", server)
			close(opened)
			<-s.Context().Done()
			return s.Context().Err()
		})
	}()
	select {
	case <-opened:
	case err := <-done:
		require.NoError(c.w.t, err, "open a stream")
	}
	return done
}

// wantCode expects a gRPC status whose message has a text.
func wantCode(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	assert.Equal(t, code, status.Code(err), "%v", err)
	assert.ErrorContains(t, err, text)
}

// wantOpen expects that nothing was closed.
func wantOpen[T any](t *testing.T, closed <-chan T) {
	t.Helper()
	synctest.Wait()
	select {
	case why := <-closed:
		t.Errorf("it was closed: %v", why)
	default:
	}
}

// wantStreamClosed expects that a stream has ended with a status.
func wantStreamClosed(t *testing.T, closed <-chan error, code codes.Code, text string) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-closed:
		wantCode(t, err, code, text)
	default:
		t.Error("the stream is open")
	}
}

// wantClosed expects that the server has closed the connection.
func (c *client) wantClosed() {
	c.w.t.Helper()
	synctest.Wait()
	select {
	case <-c.closed:
	default:
		c.w.t.Error("the connection is open")
	}
}

// pass lets a time pass in the bubble, with all that happens until its end.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
