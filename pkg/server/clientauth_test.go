// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/clientauth"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// accessLimit is the time within which a connection or a stream must be closed
// (docs/protocol.md#authentication).
const accessLimit = time.Minute

// inBubble runs a test with a server on a fake clock. intercept may be nil.
func inBubble(t *testing.T, intercept func(context.Context, storagetest.Call, func(context.Context) error) error, test func(*testing.T, *servertest.Server)) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Prepare(t, servertest.Options{InMemory: true, Groups: `{"default": {"main": {"template": "worker"}}, "other": {"main": {"template": "worker"}}}`})
		if intercept != nil {
			s.Storage = storagetest.Intercepted{Store: s.Storage, Intercept: intercept}
		}
		s.Launch()
		s.UntilListening()
		s.UntilHealthy()
		test(t, s)
	})
}

// identity is the certificate of an operator.
type identity struct {
	certificate tls.Certificate
	key         []byte
}

func newIdentity(t *testing.T, certificatePEM []byte, key ed25519.PrivateKey) identity {
	t.Helper()
	keyPEM, err := keys.EncodePrivate(key)
	require.NoError(t, err)
	certificate, err := tls.X509KeyPair(certificatePEM, keyPEM)
	require.NoError(t, err)
	publicKeyPEM, err := keys.EncodePublic(key.Public().(ed25519.PublicKey))
	require.NoError(t, err)
	return identity{certificate, publicKeyPEM}
}

// register registers an operator with a new nonce.
func register(t *testing.T, s *servertest.Server, tenant string) identity {
	t.Helper()
	loaded, err := clusterkeys.Load(t.Context(), s.Storage, s.Secrets)
	require.NoError(t, err)
	token, err := registration.NewNonceSigner(loaded.Nonce).Operator(registration.OperatorNonce{ClusterID: servertest.ClusterID, Tenant: tenant, Lifetime: time.Hour})
	require.NoError(t, err)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	publicKeyPEM, err := keys.EncodePublic(public)
	require.NoError(t, err)
	reply, err := s.Registration().RegisterOperator(t.Context(), &nstancev1.RegisterClientRequest{RegistrationNonceJwt: token, PublicKeyPem: publicKeyPEM})
	require.NoError(t, err)
	return newIdentity(t, reply.ClientCertificatePem, private)
}

// issue returns a certificate that no registration issued.
func issue(t *testing.T, s *servertest.Server, tenant string, lifetime time.Duration) identity {
	t.Helper()
	certificatePEM, keyPEM, err := s.Authority.IssueClient(pki.Client{ID: servertest.ClusterID, Tenant: tenant, Role: pki.RoleOperator}, lifetime)
	require.NoError(t, err)
	key, err := keys.ParsePrivate(keyPEM)
	require.NoError(t, err)
	return newIdentity(t, certificatePEM, key)
}

// connected is an operator with a connection of its own.
type connected struct {
	nstancev1.OperatorServiceClient
	t    *testing.T
	conn *grpc.ClientConn
	identity
}

func connect(t *testing.T, s *servertest.Server, i identity) connected {
	t.Helper()
	conn := s.Connect(i.certificate)
	return connected{nstancev1.NewOperatorServiceClient(conn), t, conn, i}
}

// list returns the error of a call.
func (c connected) list(ctx context.Context) error {
	_, err := c.ListGroups(ctx, &emptypb.Empty{})
	return err
}

// renew returns the next certificate.
func (c connected) renew() identity {
	c.t.Helper()
	reply, err := c.RenewCertificate(c.t.Context(), &nstancev1.RenewCertificateRequest{PublicKeyPem: c.key})
	require.NoError(c.t, err)
	return newIdentity(c.t, reply.ClientCertificatePem, c.certificate.PrivateKey.(ed25519.PrivateKey))
}

// watch opens a stream and returns a channel that receives its error.
func (c connected) watch(ctx context.Context) <-chan error {
	c.t.Helper()
	watch, err := c.WatchGroups(ctx, &emptypb.Empty{})
	require.NoError(c.t, err)
	_, err = watch.Recv()
	require.NoError(c.t, err)
	closed := make(chan error, 1)
	go func() {
		for err == nil {
			_, err = watch.Recv()
		}
		closed <- err
	}()
	return closed
}

// wantOpen expects that a stream is open for a while.
func wantOpen(t *testing.T, closed <-chan error, duration time.Duration) {
	t.Helper()
	select {
	case err := <-closed:
		t.Errorf("the stream was closed: %v", err)
	case <-time.After(duration):
	}
}

// wantClosed expects that a stream is closed in time, with a code and a text.
func wantClosed(t *testing.T, closed <-chan error, code codes.Code, text string) {
	t.Helper()
	select {
	case err := <-closed:
		wantCode(t, "the stream", err, code)
		assert.ErrorContains(t, err, text)
	case <-time.After(accessLimit):
		t.Fatal("the stream is still open")
	}
}

// wantDisconnected expects that the server closes the connection in time.
func (c connected) wantDisconnected() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), accessLimit)
	defer cancel()
	for state := c.conn.GetState(); state == connectivity.Ready; state = c.conn.GetState() {
		if !c.conn.WaitForStateChange(ctx, state) {
			c.t.Fatal("the connection is still open")
		}
	}
}

func TestRevokedCertificate(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		revoked, other := connect(t, s, register(t, s, "default")), connect(t, s, register(t, s, "other"))
		closed, stays := revoked.watch(t.Context()), other.watch(t.Context())
		_, err := registration.RevokeAll(t.Context(), s.Storage, "default", servertest.ClusterID)
		require.NoError(t, err)

		wantClosed(t, closed, codes.Unauthenticated, "was revoked")
		wantCode(t, "a call on the same connection", revoked.list(t.Context()), codes.Unauthenticated)
		revoked.wantDisconnected()
		again := connect(t, s, revoked.identity)
		err = again.list(t.Context())
		wantCode(t, "a call on a new connection", err, codes.Unauthenticated)
		assert.ErrorContains(t, err, "was revoked")
		again.wantDisconnected()
		_, err = again.RenewCertificate(t.Context(), &nstancev1.RenewCertificateRequest{PublicKeyPem: again.key})
		wantCode(t, "a renewal", err, codes.Unauthenticated)

		registered := connect(t, s, register(t, s, "default"))
		require.NoError(t, registered.list(t.Context()))
		wantOpen(t, registered.watch(t.Context()), accessLimit)
		wantOpen(t, stays, 0)
	})
}

// TestIdleConnectionOfRevokedCertificate is closed without any call.
func TestIdleConnectionOfRevokedCertificate(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		c := connect(t, s, register(t, s, "default"))
		_, err := registration.RevokeAll(t.Context(), s.Storage, "default", servertest.ClusterID)
		require.NoError(t, err)
		c.conn.Connect()
		for state := c.conn.GetState(); state != connectivity.Ready; state = c.conn.GetState() {
			c.conn.WaitForStateChange(t.Context(), state)
		}
		c.wantDisconnected()
	})
}

// TestReconnectedClient: a client that was away is not served from the cache.
func TestReconnectedClient(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		c := connect(t, s, register(t, s, "default"))
		require.NoError(t, c.list(t.Context()))
		require.NoError(t, c.conn.Close())
		<-time.After(accessLimit)
		_, err := registration.RevokeAll(t.Context(), s.Storage, "default", servertest.ClusterID)
		require.NoError(t, err)
		<-time.After(accessLimit)
		wantCode(t, "a call", connect(t, s, c.identity).list(t.Context()), codes.Unauthenticated)
	})
}

func TestExpiredCertificate(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		i := issue(t, s, "default", time.Hour)
		<-time.After(time.Until(i.certificate.Leaf.NotAfter) - time.Second)
		c := connect(t, s, i)
		closed := c.watch(t.Context())
		wantOpen(t, closed, 900*time.Millisecond)
		wantClosed(t, closed, codes.Unauthenticated, "has expired at 2000-01-01T01:00:")
		assert.WithinDuration(t, c.certificate.Leaf.NotAfter, time.Now(), time.Millisecond)
		wantCode(t, "a call before the connection is closed", c.list(t.Context()), codes.Unauthenticated)
		c.wantDisconnected()
	})
}

// TestConnectionIsClosedBeforeTheCertificateExpires, so that a client that has a newer
// certificate connects again without a rejected call.
func TestConnectionIsClosedBeforeTheCertificateExpires(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		c := connect(t, s, issue(t, s, "default", time.Hour))
		closed := c.watch(t.Context())
		wantOpen(t, closed, time.Hour-time.Minute)
		wantClosed(t, closed, codes.Unavailable, "connect again")
		assert.Less(t, time.Now(), c.certificate.Leaf.NotAfter)
		require.NoError(t, c.list(t.Context()), "a call before the connection is closed")
		c.wantDisconnected()
	})
}

// TestRenewedCertificate: the next certificate is accepted at once, and the previous
// certificate for a while. Before that is over its connections are closed so that the client
// connects again, without a rejected call.
func TestRenewedCertificate(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		before := connect(t, s, register(t, s, "default"))
		closed := before.watch(t.Context())
		next := before.renew()
		until := time.Now().Add(registration.Grace)
		after := connect(t, s, next)
		begin := time.Now()
		require.NoError(t, after.list(t.Context()))
		assert.LessOrEqual(t, time.Since(begin), 2*time.Second, "the first call of the next certificate waits")

		wantOpen(t, closed, registration.Grace-time.Minute)
		require.NoError(t, connect(t, s, before.identity).list(t.Context()), "within the grace period")
		wantClosed(t, closed, codes.Unavailable, "connect again")
		assert.Less(t, time.Now(), until)
		require.NoError(t, before.list(t.Context()), "a call before the connection is closed")
		before.wantDisconnected()
		again := connect(t, s, next).watch(t.Context())

		<-time.After(time.Until(until))
		late := connect(t, s, before.identity)
		err := late.list(t.Context())
		wantCode(t, "the previous certificate after the grace period", err, codes.Unauthenticated)
		assert.ErrorContains(t, err, "was replaced")
		require.NoError(t, after.list(t.Context()))
		wantOpen(t, again, time.Hour)
	})
}

// TestReplacedCertificate: another registration ends the grace period.
func TestReplacedCertificate(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		c := connect(t, s, register(t, s, "default"))
		closed := c.watch(t.Context())
		for range 2 {
			register(t, s, "default")
		}
		wantClosed(t, closed, codes.Unavailable, "connect again: the client certificate was replaced")
		c.wantDisconnected()
		wantCode(t, "a call on a new connection", connect(t, s, c.identity).list(t.Context()), codes.Unauthenticated)
	})
}

// TestRenewedTwice because the first response was lost.
func TestRenewedTwice(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		c := connect(t, s, register(t, s, "default"))
		lost := c.renew()
		<-time.After(registration.Grace - time.Second)
		next := c.renew()
		require.NoError(t, connect(t, s, next).list(t.Context()))
		wantCode(t, "the certificate that was not used", connect(t, s, lost).list(t.Context()), codes.Unauthenticated)
		<-time.After(registration.Grace - time.Minute)
		require.NoError(t, c.list(t.Context()), "the grace period begins again")
	})
}

// unreadable is a storage that counts the reads of registrations and owners, and may
// fail them.
type unreadable struct {
	fails atomic.Bool
	reads atomic.Int32
}

func (u *unreadable) intercept(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
	if !call.IsWrite() && (strings.HasPrefix(call.Key, storage.OperatorPrefix) || strings.HasPrefix(call.Key, "tenant/")) {
		u.reads.Add(1)
		if u.fails.Load() {
			return errors.New("no route to host")
		}
	}
	return do(ctx)
}

// TestUnreadableRegistrations changes nothing: the last successful read applies, and a client
// without any read is admitted.
func TestUnreadableRegistrations(t *testing.T) {
	var u unreadable
	inBubble(t, u.intercept, func(t *testing.T, s *servertest.Server) {
		c := connect(t, s, register(t, s, "default"))
		unknown := issue(t, s, "removed", 2*time.Hour)
		revoked := connect(t, s, register(t, s, "other"))
		_, err := registration.RevokeAll(t.Context(), s.Storage, "other", servertest.ClusterID)
		require.NoError(t, err)
		wantCode(t, "a revoked certificate", revoked.list(t.Context()), codes.Unauthenticated)
		closed := c.watch(t.Context())
		next := c.renew()
		u.fails.Store(true)
		wantOpen(t, closed, time.Hour)
		wantCode(t, "a certificate that is known to be revoked", connect(t, s, revoked.identity).list(t.Context()), codes.Unavailable)
		require.NoError(t, c.list(t.Context()))
		require.NoError(t, connect(t, s, c.identity).list(t.Context()), "a new connection with the known certificate")
		require.NoError(t, connect(t, s, unknown).list(t.Context()), "a client of which nothing is known")
		newer := connect(t, s, next)
		wantCode(t, "a newer certificate than the known one", newer.list(t.Context()), codes.Unavailable)
		<-time.After(accessLimit)
		assert.Equal(t, connectivity.Ready, newer.conn.GetState(), "the connection with a newer certificate")

		u.fails.Store(false)
		require.NoError(t, newer.list(t.Context()))
		<-time.After(registration.Grace)
		wantCode(t, "the previous certificate", connect(t, s, c.identity).list(t.Context()), codes.Unauthenticated)
	})
}

// TestReadsAreBounded: calls do not read the storage, whether they are admitted or not.
func TestReadsAreBounded(t *testing.T) {
	var u unreadable
	inBubble(t, u.intercept, func(t *testing.T, s *servertest.Server) {
		c := connect(t, s, register(t, s, "default"))
		stolen := connect(t, s, issue(t, s, "default", time.Hour))
		require.NoError(t, c.list(in(t, "cluster-1")))
		begin, before := time.Now(), u.reads.Load()
		for range 100 {
			require.NoError(t, c.list(in(t, "cluster-1")))
		}
		assert.Equal(t, before, u.reads.Load(), "reads of 100 calls")
		for range 20 {
			wantCode(t, "another cluster", c.list(in(t, "cluster-2")), codes.PermissionDenied)
			assert.Error(t, stolen.list(t.Context()), "another certificate")
		}
		seconds := int32(time.Since(begin)/time.Second) + 1
		assert.LessOrEqual(t, u.reads.Load()-before, 2*seconds, "reads of rejected calls in %d s", seconds)
		<-time.After(time.Until(begin.Truncate(time.Hour).Add(time.Hour)))
		before = u.reads.Load()
		<-time.After(10 * time.Minute)
		assert.LessOrEqual(t, u.reads.Load()-before, int32(2*41), "reads of an idle client in 10 minutes")
	})
}

// in returns the context of calls from a Kubernetes cluster.
func in(t *testing.T, cluster string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), identifier.KubernetesClusterKey, cluster)
}

func wantOwner(t *testing.T, s *servertest.Server, want string) {
	t.Helper()
	owner, err := clientauth.ReadOwner(t.Context(), s.Storage, "default")
	require.NoError(t, err)
	require.NotNil(t, owner)
	assert.Equal(t, want, owner.KubernetesCluster)
}

// wantRefused expects that no call from a cluster is served.
func wantRefused(t *testing.T, c connected, cluster, owner string) {
	t.Helper()
	err := c.list(in(t, cluster))
	wantCode(t, "a call", err, codes.PermissionDenied)
	for _, text := range []string{cluster, owner, "nstance-admin tenant adopt --tenant default --kubernetes-cluster " + cluster} {
		assert.ErrorContains(t, err, text)
	}
	watch, err := c.WatchGroups(in(t, cluster), &emptypb.Empty{})
	if err == nil {
		_, err = watch.Recv()
	}
	wantCode(t, "a stream", err, codes.PermissionDenied)
	_, err = c.UpsertGroup(in(t, cluster), &nstancev1.UpsertGroupRequest{Key: "main", Config: &nstancev1.GroupConfig{Size: 7}})
	wantCode(t, "a change", err, codes.PermissionDenied)
	_, err = c.RenewCertificate(in(t, cluster), &nstancev1.RenewCertificateRequest{PublicKeyPem: c.key})
	wantCode(t, "a renewal", err, codes.PermissionDenied)
}

func TestTenantBelongsToOneCluster(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		c := connect(t, s, register(t, s, "default"))
		require.NoError(t, c.list(t.Context()), "a call without a cluster")
		owner, err := clientauth.ReadOwner(t.Context(), s.Storage, "default")
		require.NoError(t, err)
		assert.Nil(t, owner, "a call without a cluster recorded an owner")

		require.NoError(t, c.list(in(t, "cluster-1")))
		wantOwner(t, s, "cluster-1")
		wantRefused(t, c, "cluster-2", "cluster-1")
		wantOwner(t, s, "cluster-1")
		require.NoError(t, c.list(t.Context()), "a call without a cluster")
		require.NoError(t, connect(t, s, register(t, s, "other")).list(in(t, "cluster-2")), "another tenant")
		for _, invalid := range []string{"", strings.Repeat("x", 129)} {
			wantCode(t, "an invalid cluster", c.list(in(t, invalid)), codes.InvalidArgument)
		}
		wantCode(t, "two clusters", c.list(metadata.AppendToOutgoingContext(in(t, "cluster-1"), identifier.KubernetesClusterKey, "cluster-1")), codes.InvalidArgument)
	})
}

func TestAdoptedTenant(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		c := connect(t, s, register(t, s, "default"))
		closed, anonymous := c.watch(in(t, "cluster-1")), c.watch(t.Context())
		wantRefused(t, c, "cluster-2", "cluster-1")
		require.NoError(t, clientauth.Adopt(t.Context(), s.Storage, "default", "cluster-2"))
		require.NoError(t, c.list(in(t, "cluster-2")), "the new owner, at once")
		wantClosed(t, closed, codes.PermissionDenied, "cluster-2")
		wantRefused(t, c, "cluster-1", "cluster-2")

		closed = c.watch(in(t, "cluster-2"))
		require.NoError(t, clientauth.Release(t.Context(), s.Storage, "default"))
		wantOpen(t, closed, accessLimit)
		require.NoError(t, c.list(in(t, "cluster-3")), "the next caller")
		wantOwner(t, s, "cluster-3")
		wantClosed(t, closed, codes.PermissionDenied, "cluster-3")
		wantOpen(t, anonymous, 0)
	})
}

// TestUnreadableOwner changes nothing.
func TestUnreadableOwner(t *testing.T) {
	var u unreadable
	inBubble(t, u.intercept, func(t *testing.T, s *servertest.Server) {
		c := connect(t, s, register(t, s, "default"))
		closed := c.watch(in(t, "cluster-1"))
		u.fails.Store(true)
		wantOpen(t, closed, time.Hour)
		require.NoError(t, c.list(in(t, "cluster-1")))
		wantCode(t, "another cluster", c.list(in(t, "cluster-2")), codes.PermissionDenied)
	})
}

// TestServersAgreeOnTheOwner when both have read that the tenant has no owner, and the
// operators of two clusters call them at the same time.
func TestServersAgreeOnTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := servertest.Start(t, servertest.Options{InMemory: true})
		var attempts sync.WaitGroup
		attempts.Add(2)
		second := startBeside(t, first, "us-west-2b", &attempts)
		third := startBeside(t, first, "us-west-2c", &attempts)
		certificate := issue(t, first, "default", time.Hour)
		errs := map[string]error{}
		var mu sync.Mutex
		var callers sync.WaitGroup
		for cluster, s := range map[string]*servertest.Server{"cluster-1": second, "cluster-2": third} {
			c := connect(t, s, certificate)
			callers.Go(func() {
				err := c.list(in(t, cluster))
				mu.Lock()
				defer mu.Unlock()
				errs[cluster] = err
			})
		}
		callers.Wait()
		owner, err := clientauth.ReadOwner(t.Context(), first.Storage, "default")
		require.NoError(t, err)
		for cluster, err := range errs {
			want := codes.PermissionDenied
			if cluster == owner.KubernetesCluster {
				want = codes.OK
			}
			wantCode(t, cluster, err, want)
		}
		assert.Len(t, errs, 2)
	})
}

// startBeside starts the server of another shard of the same cluster. It stores no owner
// before attempts is done.
func startBeside(t *testing.T, first *servertest.Server, shard string, attempts *sync.WaitGroup) *servertest.Server {
	t.Helper()
	s := servertest.Prepare(t, servertest.Options{InMemory: true, Shard: shard, Authority: first.Authority})
	_, err := first.Storage.Create(t.Context(), storage.ConfigKey(shard), s.ReadFile(storage.ConfigKey(shard)))
	require.NoError(t, err)
	s.Storage = storagetest.Intercepted{Store: first.Storage, Intercept: func(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
		if call.Operation == "Create" && call.Key == storage.TenantKey("default") {
			attempts.Done()
			attempts.Wait()
		}
		return do(ctx)
	}}
	s.Launch()
	s.UntilListening()
	s.UntilHealthy()
	return s
}
