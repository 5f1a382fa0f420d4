// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clientauth

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

func TestTheRegistrationDecidesWhichCertificateIsServed(t *testing.T) {
	for name, test := range map[string]struct {
		record func(own string, now time.Time) registration.Record
		reason string
	}{
		"it is the latest": {record: func(own string, _ time.Time) registration.Record {
			return registration.Record{CertSerial: own}
		}},
		"it was replaced, within the grace period": {record: func(own string, now time.Time) registration.Record {
			return registration.Record{CertSerial: "1", PreviousSerial: own, PreviousUntil: now.Add(time.Hour)}
		}},
		"it was replaced, after the grace period": {record: func(own string, now time.Time) registration.Record {
			return registration.Record{CertSerial: "1", PreviousSerial: own, PreviousUntil: now}
		}, reason: "was replaced by 1"},
		"another was registered": {record: func(string, time.Time) registration.Record {
			return registration.Record{CertSerial: "1"}
		}, reason: "was replaced by 1"},
		"it was revoked": {record: func(own string, _ time.Time) registration.Record {
			return registration.Record{CertSerial: own, RevokedSerials: []string{own}}
		}, reason: "was revoked"},
		"no registration issued it, before a revocation": {record: func(_ string, now time.Time) registration.Record {
			return registration.Record{RevokedBefore: now.Add(time.Hour)}
		}, reason: "was revoked"},
		"no registration issued it, after a revocation": {record: func(_ string, now time.Time) registration.Record {
			return registration.Record{RevokedBefore: now.Add(-time.Hour)}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				own := w.operator("default")
				w.record(test.record(own.serial, time.Now()))
				c := w.connect(own)
				if test.reason == "" {
					assert.NoError(t, c.call())
					return
				}
				for range 2 {
					wantCode(t, c.call(), codes.Unauthenticated, test.reason)
				}
				assert.Len(t, w.takeCalls(operatorKey), 1, "reads of a connection that is being closed")
				wantOpen(t, c.closed)
				pass(rejectDelay)
				c.wantClosed()
			})
		})
	}
}

func TestAClientWithoutARegistrationIsServed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		own := w.operator("default")
		w.record(registration.Record{RevokedSerials: []string{own.serial}, CertSerial: own.serial})
		assert.NoError(t, w.connect(w.operator("other")).call(), "the operator of another tenant")
		assert.NoError(t, w.connect(w.issue(pki.Client{ID: "test", Tenant: "default", Role: pki.RoleOperator}, time.Hour)).call(), "another client of the tenant")
	})
}

// grpcapi.Authorize rejects other roles, and no registration has a tenant without a valid name.
func TestOtherClientsThanOperatorsReadNothing(t *testing.T) {
	for name, client := range map[string]pki.Client{
		"an agent":         {ID: "knd01", Tenant: "default", Role: pki.RoleAgent},
		"an unknown role":  {ID: "prod", Tenant: "default", Role: "auditor"},
		"an unusable name": {ID: "prod", Tenant: "../default", Role: pki.RoleOperator},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				c := w.connect(w.issue(client, time.Hour))
				assert.NoError(t, c.call())
				assert.NoError(t, c.call("cluster-1"))
				pass(time.Minute)
				assert.NoError(t, c.call("cluster-2"))
				if client.Role == pki.RoleAgent {
					assert.NotEmpty(t, w.takeCalls(storage.RevokedAgentsKey("a")))
				}
				assert.Empty(t, w.calls)
			})
		})
	}
}

func TestCallsWithoutAClientAreRejected(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		c := w.connect(w.issue(pki.Client{ID: "not a name", Tenant: "default", Role: pki.RoleOperator}, time.Hour))
		defer func() { _ = c.conn.Close() }()
		for _, s := range []*stream{
			{ctx: c.context()}, // a certificate without a client
			{ctx: t.Context()}, // no peer
			{ctx: peer.NewContext(t.Context(), &peer.Peer{})},                                                    // no TLS
			{ctx: peer.NewContext(t.Context(), &peer.Peer{AuthInfo: newConnection(nil, credentials.TLSInfo{})})}, // a certificate that was not verified
		} {
			wantCode(t, c.callIn(s.ctx), codes.Unauthenticated, "the connection has no client")
			wantCode(t, w.Stream(nil, s, nil, nil), codes.Unauthenticated, "the connection has no client")
		}
		assert.Empty(t, w.connected())
	})
}

// If the storage is down, the last successful read applies.
func TestAStorageThatIsDownChangesNothing(t *testing.T) {
	t.Run("nothing is known of the client", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			w.setDown(true)
			c := w.connect(w.operator("default"))
			closed := c.open()
			pass(time.Hour)
			assert.NoError(t, c.call())
			wantOpen(t, closed)
		})
	})
	t.Run("the certificate is known to be the latest", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			own := w.operator("default")
			w.record(registration.Record{CertSerial: own.serial})
			c := w.connect(own)
			closed := c.open()
			w.setDown(true)
			pass(time.Hour)
			assert.NoError(t, c.call())
			assert.NoError(t, w.connect(own).call(), "on another connection")
			wantOpen(t, closed)
		})
	})
	t.Run("the certificate is known to be revoked", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			own := w.operator("default")
			w.record(registration.Record{CertSerial: own.serial, RevokedSerials: []string{own.serial}})
			wantCode(t, w.connect(own).call(), codes.Unauthenticated, "was revoked")
			w.setDown(true)
			for range 3 {
				wantCode(t, w.connect(own).call(), codes.Unavailable, `read which certificate of tenant "default" is current: no route to host`)
				pass(time.Hour)
			}
		})
	})
	t.Run("the certificate is newer than what is known", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			former, next := w.operator("default"), w.operator("default")
			w.record(registration.Record{CertSerial: former.serial})
			assert.NoError(t, w.connect(former).call())
			w.setDown(true)
			w.record(registration.Record{CertSerial: next.serial, PreviousSerial: former.serial, PreviousUntil: time.Now().Add(registration.Grace)})
			c := w.connect(next)
			wantCode(t, c.call(), codes.Unavailable, "no route to host")
			// The certificate may be the latest, so its connection is not closed.
			pass(time.Minute)
			wantOpen(t, c.closed)
			wantCode(t, c.call(), codes.Unavailable, "no route to host")
			w.setDown(false)
			assert.NoError(t, c.call())
		})
	})
}

// An object that cannot be decoded is like a storage that is down.
func TestRegistrationsThatCannotBeDecodedChangeNothing(t *testing.T) {
	for name, data := range map[string]string{
		"garbage":            "garbage",
		"of a later version": `{"format_version": 2, "cert_serial": "1"}`,
		"of another type":    `{"cert_serial": 7}`,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				own := w.operator("default")
				w.record(registration.Record{CertSerial: "1"})
				wantCode(t, w.connect(own).call(), codes.Unauthenticated, "was replaced")
				w.put(operatorKey, []byte(data))
				wantCode(t, w.connect(own).call(), codes.Unavailable, "object operator/default.prod.json: ")
			})
		})
	}
}

// Operators give their calls 10 s.
func TestAStorageThatHangsDelaysCallsForAWhile(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.before = func(ctx context.Context, _ storagetest.Call) error {
			<-ctx.Done()
			return ctx.Err()
		}
		begin := time.Now()
		assert.NoError(t, w.connect(w.operator("default")).call("cluster-1"))
		// The registration, and the owner of the tenant.
		assert.Equal(t, 2*storageTimeout, time.Since(begin))
	})
}

func TestACallDoesNotWaitLongerThanItsClient(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		own := w.operator("default")
		w.record(registration.Record{CertSerial: own.serial, RevokedSerials: []string{own.serial}})
		w.before = func(ctx context.Context, _ storagetest.Call) error {
			<-time.After(2 * time.Second)
			return ctx.Err()
		}
		c := w.connect(own)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(c.context(), time.Second)
		defer cancel()
		_ = c.callIn(ctx)
		assert.Equal(t, time.Second, time.Since(begin))
		// The read goes on for the other calls.
		pass(time.Second)
		wantCode(t, c.call(), codes.Unauthenticated, "was revoked")
	})
}

func TestCallsShareWhatWasRead(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		own := w.operator("default")
		w.record(registration.Record{CertSerial: own.serial})
		w.before = func(context.Context, storagetest.Call) error {
			<-time.After(100 * time.Millisecond)
			return nil
		}
		c := w.connect(own)
		var calls sync.WaitGroup
		for range 100 {
			calls.Go(func() { assert.NoError(t, c.call()) })
		}
		calls.Wait()
		// For some calls the first read began too early.
		assert.LessOrEqual(t, len(w.takeCalls(operatorKey)), 2, "reads of the first calls")
		for range 100 {
			assert.NoError(t, c.call())
		}
		assert.NoError(t, w.connect(own).call(), "on another connection")
		assert.Empty(t, w.takeCalls(operatorKey), "reads of further calls")
		pass(10 * time.Minute)
		assert.Len(t, w.takeCalls(operatorKey), int(10*time.Minute/interval), "reads while it is connected")
	})
}

// The cached registration of a client that was away is too old.
func TestAClientThatConnectsAgainIsReadAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		own := w.operator("default")
		w.record(registration.Record{CertSerial: own.serial})
		c := w.connect(own)
		assert.NoError(t, c.call())
		assert.NoError(t, c.conn.Close())
		w.record(registration.Record{CertSerial: own.serial, RevokedSerials: []string{own.serial}})
		w.takeCalls(operatorKey)
		pass(maxAge)
		again := w.connect(own)
		assert.NoError(t, again.call(), "what was read just now applies")
		assert.NoError(t, again.conn.Close())
		assert.Empty(t, w.takeCalls(operatorKey))
		pass(1)
		wantCode(t, w.connect(own).call(), codes.Unauthenticated, "was revoked")
	})
}

func TestRejectedCallsReadOnceASecond(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		own := w.operator("default")
		w.record(registration.Record{CertSerial: "1"})
		begin := time.Now()
		for range 10 {
			wantCode(t, w.connect(own).call(), codes.Unauthenticated, "was replaced")
		}
		assert.Equal(t, 9*minInterval, time.Since(begin), "they wait")
		assert.Len(t, w.takeCalls(operatorKey), 10)
		// A client whose certificate is current by then waits for the read.
		w.record(registration.Record{CertSerial: own.serial})
		assert.NoError(t, w.connect(own).call())
		assert.Equal(t, 10*minInterval, time.Since(begin))
	})
}
