// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clientauth

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/base/connlimit"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/registration"
)

func TestTheGuardKnowsOpenConnections(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		own := w.operator("default")
		first, second := w.connect(own), w.connect(own)
		assert.Len(t, w.connected(), 2)
		info, ok := first.auth.(interface{ TLS() credentials.TLSInfo })
		require.True(t, ok)
		assert.Equal(t, own.Leaf.SerialNumber, info.TLS().State.VerifiedChains[0][0].SerialNumber)
		require.NoError(t, first.conn.Close())
		assert.Len(t, w.connected(), 1)
		require.NoError(t, second.conn.Close())
		assert.Empty(t, w.connected())
	})
}

// gRPC closes a connection whose handshake takes too long.
func TestAConnectionThatIsClosedDuringItsHandshakeIsNotKept(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		_, raw := net.Pipe()
		conn := &trackedConn{Conn: raw, guard: w.Guard}
		require.NoError(t, conn.Close())
		w.add(conn, &connection{conn: conn, certificate: w.operator("default").Leaf})
		assert.Empty(t, w.connected())
	})
}

// The client has seen the authorities of before, and nothing else tells it that there are others.
func TestAConnectionWhoseHandshakeTheAuthoritiesChangeIsClosed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		clientSide, serverSide := net.Pipe()
		begin, closed := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(closed)
			<-begin
			_, _ = io.Copy(io.Discard, tls.Client(clientSide, w.tlsConfig(w.operator("default"))))
		}()
		accepted, err := w.listen(serverSide).Accept()
		require.NoError(t, err)
		handshake := make(chan credentials.AuthInfo)
		go func() {
			_, auth, err := w.serving.Clone().ServerHandshake(accepted)
			assert.NoError(t, err)
			handshake <- auth
		}()
		synctest.Wait()
		w.AuthorityChanged()
		close(begin)
		auth := <-handshake
		ended := func(auth credentials.AuthInfo) error {
			c := auth.(*connection)
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.ended
		}
		assert.Equal(t, status.Error(codes.Unavailable, "connect again: the authorities of the cluster have changed"), ended(auth))
		<-closed
		assert.NoError(t, ended(w.connect(w.operator("default")).auth), "the next connection")
	})
}

// A client that is not authenticated does not count as one that is.
func TestTheGuardLimitsConnectionsOfClients(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		limited := &listenerOf{}
		listener := w.Listener(limited, connlimit.Limits{Pending: 1, PendingPerAddress: 1, Authenticated: 1})
		accept := func() (client, accepted net.Conn) {
			client, limited.conn = net.Pipe()
			accepted, err := listener.Accept()
			require.NoError(t, err)
			return client, accepted
		}
		handshake := func() (net.Conn, error) {
			client, accepted := accept()
			go func() {
				conn := tls.Client(client, w.tlsConfig(w.operator("default")))
				_, _ = io.Copy(io.Discard, conn)
			}()
			conn, _, err := w.serving.ServerHandshake(accepted)
			return conn, err
		}
		for range 10 {
			silent, _ := accept()
			defer func() { _ = silent.Close() }()
		}
		first, err := handshake()
		require.NoError(t, err, "a silent connection is in the way")
		_, err = handshake()
		require.ErrorContains(t, err, "at most 1 are allowed")
		assert.Len(t, w.connected(), 1)
		require.NoError(t, first.Close())
		_, err = handshake()
		require.NoError(t, err)
	})
}

func TestAHandshakeThatFailsIsNotKept(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		client, server := net.Pipe()
		require.NoError(t, client.Close())
		accepted, err := w.listen(server).Accept()
		require.NoError(t, err)
		_, auth, err := w.serving.ServerHandshake(accepted)
		assert.Error(t, err)
		assert.Nil(t, auth)
		assert.Empty(t, w.connected())
	})
}

func TestARevocationClosesConnections(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		own := w.operator("default")
		w.record(registration.Record{CertSerial: own.serial})
		// The idle connections have made no call.
		active, idle, other := w.connect(own), w.connect(own), w.connect(w.operator("other"))
		closed, stays := active.open(), other.open()
		w.record(registration.Record{CertSerial: own.serial, RevokedSerials: []string{own.serial}})
		pass(interval - 1)
		wantOpen(t, closed)
		pass(1)
		wantStreamClosed(t, closed, codes.Unauthenticated, "was revoked")
		w.takeCalls(operatorKey)
		wantCode(t, active.call(), codes.Unauthenticated, "was revoked")
		wantCode(t, idle.call(), codes.Unauthenticated, "was revoked")
		assert.Empty(t, w.takeCalls(operatorKey))
		// The client receives the reason first.
		wantOpen(t, active.closed)
		wantOpen(t, idle.closed)
		pass(rejectDelay)
		active.wantClosed()
		idle.wantClosed()
		wantOpen(t, stays)
		wantOpen(t, other.closed)
		assert.NoError(t, other.call())
	})
}

// A revoked agent gets no files any more, also on streams that are open.
func TestARevocationClosesTheConnectionOfAnAgent(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		agent := func(id string) identity {
			return w.issue(pki.Client{ID: id, Tenant: "default", Role: pki.RoleAgent}, time.Hour)
		}
		first, second := agent("knd01"), agent("knd02")
		revoked, other := w.connect(first), w.connect(second)
		closed, stays := revoked.open(), other.open()
		// Certificates have whole seconds.
		pass(time.Second)
		require.NoError(t, registration.RevokeAgent(t.Context(), w.store, "a", "knd01", ""))
		pass(interval)
		wantStreamClosed(t, closed, codes.Unauthenticated, "was revoked")
		wantCode(t, revoked.call(), codes.Unauthenticated, "was revoked")
		pass(rejectDelay)
		revoked.wantClosed()
		wantCode(t, w.connect(first).call(), codes.Unauthenticated, "was revoked")
		wantOpen(t, stays)
		assert.NoError(t, other.call())
		require.NoError(t, registration.RevokeAgent(t.Context(), w.store, "a", "knd02", second.serial))
		pass(interval)
		wantStreamClosed(t, stays, codes.Unauthenticated, "was revoked")
		// A certificate that was issued later is accepted, and an outage changes nothing.
		assert.NoError(t, w.connect(agent("knd01")).call())
		w.setDown(true)
		pass(2 * maxAge)
		wantCode(t, w.connect(first).call(), codes.Unauthenticated, "was revoked")
		assert.NoError(t, w.connect(agent("knd03")).call())
	})
}

// The connection is closed before the grace period is over, so that a client that has the
// next certificate connects again without a rejected call.
func TestAReplacedCertificateClosesConnectionsBeforeItsGracePeriodEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		own := w.operator("default")
		// The last check in time is interval and margin before.
		const grace = 10*interval + margin
		w.record(registration.Record{CertSerial: "1", PreviousSerial: own.serial, PreviousUntil: time.Now().Add(grace)})
		c := w.connect(own)
		closed := c.open()
		pass(8 * interval)
		wantOpen(t, closed)
		pass(interval)
		wantStreamClosed(t, closed, codes.Unavailable, "connect again: the client certificate was replaced")
		assert.NoError(t, c.call(), "a call before the connection is closed")
		err := w.Stream(nil, &stream{ctx: c.context()}, nil, func(any, grpc.ServerStream) error {
			t.Error("a stream is served on a connection that is being closed")
			return nil
		})
		wantCode(t, err, codes.Unavailable, "connect again")
		wantOpen(t, c.closed)
		pass(reconnectDelay)
		c.wantClosed()
	})
}

func TestAReplacedCertificateWithoutAGracePeriodConnectsAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		own := w.operator("default")
		w.record(registration.Record{CertSerial: own.serial})
		c := w.connect(own)
		closed := c.open()
		w.record(registration.Record{CertSerial: "1"})
		pass(interval)
		wantStreamClosed(t, closed, codes.Unavailable, "connect again: the client certificate was replaced by 1")
		pass(reconnectDelay)
		c.wantClosed()
	})
}

// A client that may have a newer certificate connects again without a rejected call.
func TestConnectionsAreClosedBeforeTheCertificateExpires(t *testing.T) {
	for name, test := range map[string]struct{ lifetime, lead time.Duration }{
		"long":  {lifetime: 24 * time.Hour, lead: 10 * time.Second},
		"short": {lifetime: time.Minute, lead: 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				c := w.connect(w.issue(pki.Client{ID: "prod", Tenant: "default", Role: pki.RoleOperator}, test.lifetime))
				closed := c.open()
				pass(test.lifetime - test.lead - 1)
				wantOpen(t, closed)
				pass(1)
				wantStreamClosed(t, closed, codes.Unavailable, "connect again: the client certificate expires at 2000-01-0")
				assert.NoError(t, c.call(), "a call before the connection is closed")
				pass(reconnectDelay)
				c.wantClosed()
			})
		})
	}
}

func TestConnectionsAreClosedWhenTheCertificateExpires(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		own := w.issue(pki.Client{ID: "prod", Tenant: "default", Role: pki.RoleOperator}, time.Minute)
		pass(time.Minute - minRemaining)
		c := w.connect(own)
		closed := c.open()
		pass(minRemaining)
		wantOpen(t, closed)
		assert.NoError(t, c.call(), "at the end of the validity")
		pass(1)
		wantStreamClosed(t, closed, codes.Unauthenticated, "has expired at 2000-01-01T00:01:00Z")
		wantCode(t, c.call(), codes.Unauthenticated, "has expired")
		pass(rejectDelay)
		c.wantClosed()
	})
}

// A call that is made when the certificate has expired closes the connection too.
func TestACallWithAnExpiredCertificateIsRejected(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		c := w.connect(w.issue(pki.Client{ID: "prod", Tenant: "default", Role: pki.RoleOperator}, time.Minute))
		for connection := range w.connections {
			connection.expiry.Stop()
		}
		assert.NoError(t, c.call())
		// A second before the check of the connections.
		pass(5*interval - time.Second)
		w.takeCalls(operatorKey)
		wantCode(t, c.call(), codes.Unauthenticated, "has expired")
		assert.Empty(t, w.takeCalls(operatorKey), "the storage knows no better")
		pass(rejectDelay)
		c.wantClosed()
	})
}

func TestStreamsEndAsTheirHandlerDoes(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		c := w.connect(w.operator("default"))
		failed := errors.New("failed")
		for _, want := range []error{nil, failed} {
			err := w.Stream(nil, &stream{ctx: c.context()}, nil, func(any, grpc.ServerStream) error { return want })
			assert.ErrorIs(t, err, want)
			_, err = w.Unary(c.context(), nil, nil, func(context.Context, any) (any, error) { return nil, want })
			assert.ErrorIs(t, err, want)
		}
		for connection := range w.connections {
			assert.Empty(t, connection.streams, "streams that have ended")
		}
	})
}

// A handler may notice only that its stream has ended.
func TestAStreamThatIsClosedHasTheReason(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		own := w.operator("default")
		c := w.connect(own)
		w.record(registration.Record{RevokedSerials: []string{own.serial}})
		err := w.Stream(nil, &stream{ctx: c.context()}, nil, func(any, grpc.ServerStream) error { return nil })
		wantCode(t, err, codes.Unauthenticated, "was revoked")
		w.record(registration.Record{CertSerial: own.serial})
		pass(time.Minute)
		again := w.connect(own)
		err = w.Stream(nil, &stream{ctx: again.context()}, nil, func(_ any, s grpc.ServerStream) error {
			w.record(registration.Record{RevokedSerials: []string{own.serial}})
			<-s.Context().Done()
			return nil
		})
		wantCode(t, err, codes.Unauthenticated, "was revoked")
	})
}
